"""False `equal`s that an attacker of the readers of StableHLO and HLO found: none is said any more, and the right pairs
beside them stay equal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from shardproof.models.equality.captured import Unreadable
from shardproof.models.sources.partitioned.hlo import require_plain_bitcasts
from shardproof.models.sources.partitioned.indexed import from_the_end
from shardproof.models.sources.partitioned.writer import Writer

HERE = Path(__file__).parent
needs_jax = pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed")

ASKED = """
import json, os, sys
sys.path.insert(0, {here!r})
from jax_texts import told
rows = json.loads(sys.stdin.read())
print(json.dumps([told("equal", *words) for words in rows]))
"""
Rows = dict[str, tuple[str, str, int, str]]
"""Names of two texts with what else is said, the exit status, and words of the refusal."""


def asked(folder: Path, texts: dict[str, str], rows: list[list[str]]) -> list[tuple[int, str, str]]:
    """What `equal` says of pairs of these texts, on four host devices."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(here=str(HERE))],
        input=json.dumps(rows),
        capture_output=True,
        check=False,
        text=True,
        timeout=280,
        cwd=folder,
        env={**os.environ, **flags, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [(code, out, error) for code, out, error in json.loads(done.stdout.splitlines()[-1])]


def judged(folder: Path, texts: dict[str, str], rows: Rows) -> None:
    said = asked(folder, texts, [f"{one} {many}".split() for one, many, _, _ in rows.values()])
    for (name, (_, _, code, words)), told in zip(rows.items(), said, strict=True):
        assert told[0] == code, (name, told)
        assert words in " ".join(told[1:]), (name, told)


def module(arguments: str, results: str, body: str, more: str = "") -> str:
    return f"module @m {{\n func.func public @main({arguments}) -> ({results}) {{\n{body}\n }}\n{more}}}\n"


# ------------------------------------------------------------------ reductions that start from something


def first(start: str, place: str = "0", kind: str = "f32", more: str = "", tie: str = "%1") -> str:
    """The first of the greatest of rows, as JAX writes `argmax`; `tie` joins which position counts."""
    float_, sign = ("FLOAT", "SIGNED") if kind == "f32" else ("SIGNED", "SIGNED")
    return module(
        f"%x: tensor<4x16x{kind}>",
        "tensor<4xi32>",
        f"""
  %i = stablehlo.iota dim = 1 : tensor<4x16xi32>
  %c = stablehlo.constant dense<{start}> : tensor<{kind}>
  %z = stablehlo.constant dense<{place}> : tensor<i32>
  %r:2 = stablehlo.reduce(%x init: %c), (%i init: %z) across dimensions = [1] :
     (tensor<4x16x{kind}>, tensor<4x16xi32>, tensor<{kind}>, tensor<i32>) -> (tensor<4x{kind}>, tensor<4xi32>)
   reducer(%a: tensor<{kind}>, %b: tensor<{kind}>) (%p: tensor<i32>, %q: tensor<i32>) {{
    %0 = stablehlo.compare GT, %a, %b, {float_} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
    %e = stablehlo.compare EQ, %a, %b, {float_} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
    %1 = stablehlo.compare LT, %p, %q, {sign} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    {more}
    %3 = stablehlo.and %e, {tie} : tensor<i1>
    %4 = stablehlo.or %0, %3 : tensor<i1>
    %5 = stablehlo.select %0, %a, %b : tensor<i1>, tensor<{kind}>
    %6 = stablehlo.select %4, %p, %q : tensor<i1>, tensor<i32>
    stablehlo.return %5, %6 : tensor<{kind}>, tensor<i32>
  }}
  return %r#1 : tensor<4xi32>""",
    )


def truths(how: str, start: str) -> str:
    return module(
        "%x: tensor<4x16xi1>",
        "tensor<4xi1>",
        f"""
  %c = stablehlo.constant dense<{start}> : tensor<i1>
  %r = stablehlo.reduce(%x init: %c) applies stablehlo.{how} across dimensions = [1] :
     (tensor<4x16xi1>, tensor<i1>) -> tensor<4xi1>
  return %r : tensor<4xi1>""",
    )


STARTED = module(
    "%x: tensor<4x16xi1>",
    "tensor<4xi1>",
    """
  %s = stablehlo.slice %x [0:1, 0:1] : (tensor<4x16xi1>) -> tensor<1x1xi1>
  %c = stablehlo.reshape %s : (tensor<1x1xi1>) -> tensor<i1>
  %r = stablehlo.reduce(%x init: %c) applies stablehlo.or across dimensions = [1] :
     (tensor<4x16xi1>, tensor<i1>) -> tensor<4xi1>
  return %r : tensor<4xi1>""",
)


@needs_jax
@pytest.mark.torch
def test_reductions_start_from_nothing(tmp_path: Path) -> None:
    texts = {
        "first.mlir": first("0xFF800000"),
        "whole.mlir": first("-2147483648", kind="i32"),
        "zero.mlir": first("0.0"),
        "place.mlir": first("0xFF800000", "3"),
        "or.mlir": truths("or", "false"),
        "or_true.mlir": truths("or", "true"),
        "or_data.mlir": STARTED,
        "and.mlir": truths("and", "true"),
        "and_false.mlir": truths("and", "false"),
    }
    judged(
        tmp_path,
        texts,
        {
            "argmax": ("first.mlir", "first.mlir --ranks 1", 0, ""),
            "argmax of whole numbers": ("whole.mlir", "whole.mlir --ranks 1", 0, ""),
            "argmax from 0": ("first.mlir", "zero.mlir --ranks 1", 3, "starts from something else than nothing"),
            "argmax from place 3": ("first.mlir", "place.mlir --ranks 1", 3, "with their positions that starts from"),
            "or": ("or.mlir", "or.mlir --ranks 1", 0, ""),
            "or from true": ("or.mlir", "or_true.mlir --ranks 1", 3, "truth values by stablehlo.or that starts from"),
            "or from data": ("or.mlir", "or_data.mlir --ranks 1", 3, "truth values by stablehlo.or that starts from"),
            "and": ("and.mlir", "and.mlir --ranks 1", 0, ""),
            "and from false": ("and.mlir", "and_false.mlir --ranks 1", 3, "by stablehlo.and that starts from"),
        },
    )


# ------------------------------------------------------------------ whole numbers in types that do not hold them


def run_of(many: int, kind: str) -> str:
    return module(
        "%x: tensor<8xi32>",
        "tensor<8xi32>",
        f"""
  %i = stablehlo.iota dim = 0 : tensor<{many}x{kind}>
  %s = stablehlo.slice %i [{many - 8}:{many}] : (tensor<{many}x{kind}>) -> tensor<8x{kind}>
  %c = stablehlo.convert %s : (tensor<8x{kind}>) -> tensor<8xi32>
  %r = stablehlo.add %c, %x : tensor<8xi32>
  return %r : tensor<8xi32>""",
    )


@needs_jax
@pytest.mark.torch
def test_a_type_that_does_not_hold_its_numbers(tmp_path: Path) -> None:
    texts = {
        **{f"long{n}.mlir": run_of(n, "i32") for n in (128, 129)},
        **{f"short{n}.mlir": run_of(n, "i8") for n in (128, 129)},
    }
    judged(
        tmp_path,
        texts,
        {
            "128 positions": ("long128.mlir", "short128.mlir --ranks 1", 0, ""),
            "129 positions": ("long129.mlir", "short129.mlir --ranks 1", 3, "an iota of 129 positions, of which int8"),
        },
    )


def test_bounds_pass_through_casts_that_hold_them() -> None:
    for kind, found in (("int64", (0.0, 300.0)), ("int16", (0.0, 300.0)), ("int8", None), ("uint8", None),
                        ("float16", None)):  # fmt: skip
        writer = Writer()
        x = writer.source("x", "input", np.zeros(4, np.int32), "int32")
        kept = writer.two("minimum", writer.two("maximum", x, writer.full((4,), 0, "int32"), "int32"),
                          writer.full((4,), 300, "int32"), "int32")  # fmt: skip
        assert writer.bounds(kept) == (0.0, 300.0)
        assert writer.bounds(writer.cast(kept, kind)) == (found or (float("-inf"), float("inf"))), kind


def test_positions_from_the_end_pass_through_types_that_hold_them() -> None:
    for kind, extent, found in (("int16", 301, True), ("int8", 128, True), ("int8", 301, False), ("float32", 8, False)):
        writer = Writer()
        x = writer.source("x", "input", np.zeros(4, np.int32), "int32")
        below = writer.step("lt", (x,), {"number": 0}, (4,), "bool")
        turned = writer.step("where", (below, writer.two("add", x, writer.full((4,), extent, "int32"), "int32"), x), {},
                             (4,), "int32")  # fmt: skip
        assert from_the_end(writer, turned, extent) == x
        assert (from_the_end(writer, writer.cast(turned, kind), extent) == x) == found, (kind, extent)


# ------------------------------------------------------------------ composites


def composite(name: str, inner: str) -> str:
    return module(
        "%x: tensor<8xf32>",
        "tensor<8xf32>",
        f'  %r = stablehlo.composite "{name}" %x {{decomposition = @f}} : (tensor<8xf32>) -> tensor<8xf32>\n'
        "  return %r : tensor<8xf32>",
        f" func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {{\n{inner}\n }}\n",
    )


@needs_jax
@pytest.mark.torch
def test_a_composite_is_its_decomposition(tmp_path: Path) -> None:
    plain = "  %t = stablehlo.tanh %x : tensor<8xf32>\n  return %t : tensor<8xf32>"
    above = """
  %k = stablehlo.constant dense<50.0> : tensor<8xf32>
  %p = stablehlo.compare GT, %x, %k, FLOAT : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  %t = stablehlo.tanh %x : tensor<8xf32>
  %r = stablehlo.select %p, %x, %t : tensor<8xi1>, tensor<8xf32>
  return %r : tensor<8xf32>"""
    texts = {
        "one.mlir": module("%x: tensor<8xf32>", "tensor<8xf32>", plain),
        "right.mlir": composite("stablehlo.tanh", plain),
        "other.mlir": composite("stablehlo.tanh", above),
        "erf.mlir": composite("chlo.erf", plain),
    }
    judged(
        tmp_path,
        texts,
        {
            "the same": ("one.mlir", "right.mlir --ranks 1", 0, ""),
            "another above 50": ("one.mlir", "other.mlir --ranks 1", 5, "undecided"),
            "of another name": ("one.mlir", "erf.mlir --ranks 1", 0, ""),
        },
    )


# ------------------------------------------------------------------ regions that know constants


def in_order(more: str, end: str, second: bool = False) -> str:
    """Rows in order, or the positions of what is in order, by a region."""
    also = (", %p: tensor<i32>, %q: tensor<i32>", ", %i", ", tensor<4x16xi32>") if second else ("", "", "")
    made = "%r:2" if second else "%r"
    out = ("%r#1", "tensor<4x16xi32>") if second else ("%r", "tensor<4x16xf32>")
    return module(
        "%x: tensor<4x16xf32>",
        out[1],
        f"""
  %i = stablehlo.iota dim = 1 : tensor<4x16xi32>
  {made} = "stablehlo.sort"(%x{also[1]}) <{{dimension = 1 : i64, is_stable = true}}> ({{
   ^bb0(%a: tensor<f32>, %b: tensor<f32>{also[0]}):
    %0 = stablehlo.compare LT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    {more}
    stablehlo.return {end} : tensor<i1>
  }}) : (tensor<4x16xf32>{also[2]}) -> (tensor<4x16xf32>{also[2]})
  return {out[0]} : {out[1]}""",
    )


def beyond(number: str) -> str:
    """Greatest first among numbers above this one."""
    return f"""%k = stablehlo.constant dense<{number}> : tensor<f32>
    %1 = stablehlo.compare GT, %a, %k, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.compare GT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %4 = stablehlo.select %1, %2, %0 : tensor<i1>, tensor<i1>"""


def tied(direction: str) -> str:
    """Equal numbers by their positions."""
    return f"""%1 = stablehlo.compare EQ, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.compare {direction}, %p, %q, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %3 = stablehlo.and %1, %2 : tensor<i1>
    %4 = stablehlo.or %0, %3 : tensor<i1>"""


BEYOND_2 = """%k = stablehlo.constant dense<2> : tensor<i32>
    %h = stablehlo.compare GT, %p, %k, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %g = stablehlo.compare GT, %p, %q, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %t = stablehlo.select %h, %g, %1 : tensor<i1>, tensor<i1>"""


@needs_jax
@pytest.mark.torch
def test_regions_are_known_in_every_order(tmp_path: Path) -> None:
    large = ("1.0e17", "3.40282347E+38", "-1.0e30", "0.0")
    texts = {
        "sort.mlir": in_order("", "%0"),
        **{f"beyond{k}.mlir": in_order(beyond(n), "%4") for k, n in enumerate(large)},
        "infinite.mlir": in_order(beyond("0x7F800000"), "%4"),
        "places.mlir": in_order("", "%0", True),
        "ahead.mlir": in_order(tied("LT"), "%4", True),
        "behind.mlir": in_order(tied("GT"), "%4", True),
        "first.mlir": first("0xFF800000"),
        "constant.mlir": first("0xFF800000", more=BEYOND_2, tie="%t"),
    }
    refused = "by a region of"
    judged(
        tmp_path,
        texts,
        {
            "rows": ("sort.mlir", "sort.mlir --ranks 1", 0, ""),
            "a constant that nothing is above": ("sort.mlir", "infinite.mlir --ranks 1", 0, ""),
            **{f"beyond {n}": ("sort.mlir", f"beyond{k}.mlir --ranks 1", 3, refused) for k, n in enumerate(large)
               if n != "3.40282347E+38"},
            "positions": ("places.mlir", "ahead.mlir --ranks 1", 0, ""),
            "positions behind": ("places.mlir", "behind.mlir --ranks 1", 3, refused),
            "argmax": ("first.mlir", "first.mlir --ranks 1", 0, ""),
            "argmax by a place": ("first.mlir", "constant.mlir --ranks 1", 3, "reduces 2 operands by a region"),
        },
    )  # fmt: skip


# ------------------------------------------------------------------ what texts of HLO say of themselves

MEAN = """HloModule jit_f, HEAD
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY main.1 {
  x.1 = f32[8,8]{1,0} parameter(0), sharding={replicated}
  r = f32[8,8]{1,0} all-reduce(x.1), channel_id=1, replica_groups={}, to_apply=add
  k = f32[] constant(0.5)
  kk = f32[8,8]{1,0} broadcast(k), dimensions={}
  ROOT m = f32[8,8]{1,0} multiply(r, kk)
}
"""
SAME = module("%x: tensor<8x8xf32>", "tensor<8x8xf32>", "  return %x : tensor<8x8xf32>")


@needs_jax
@pytest.mark.torch
def test_headers_of_texts(tmp_path: Path) -> None:
    texts = {
        "one.mlir": SAME,
        "mean.hlo": MEAN.replace("HEAD", "num_partitions=2"),
        "comment.hlo": MEAN.replace("HEAD", "/* num_partitions=4 */ num_partitions=2"),
        "quarter.hlo": MEAN.replace("HEAD", "/* num_partitions=4 */ num_partitions=2").replace("0.5", "0.25"),
        "replicas.hlo": MEAN.replace("HEAD", "/* replica_count=1 */ replica_count=2, num_partitions=2"),
    }
    judged(
        tmp_path,
        texts,
        {
            "a mean": ("one.mlir", "mean.hlo", 0, ""),
            "a comment": ("one.mlir", "comment.hlo", 0, ""),
            "a mean of four": ("one.mlir", "quarter.hlo", 10, "different"),
            "replicas": ("one.mlir", "replicas.hlo", 3, "is of 2 replicas"),
        },
    )


TILED = """HloModule jit_f, is_scheduled=true, num_partitions=2
ENTRY main.1 {
  x.1 = f32[8,256]{1,0:T(8,128)} parameter(0), sharding={replicated}
  ROOT r = f32[2,8,128]{2,1,0:T(8,128)} bitcast(x.1)
}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TILED, "lie in tiles (x.1=f32"),
        (TILED.replace(":T(8,128)", "").replace("[8,256]{1,0}", "[8,256]"), "does not say how tensors lie (x.1=f32"),
        (TILED.replace(":T(8,128)", "").replace("{2,1,0}", ""), "does not say how tensors lie (r=f32"),
        (TILED.replace("{2,1,0:T(8,128)} bitcast(x.1)", "{2,1,0:T(8,128)}\n /* now */ bitcast(x.1)"), "lie in tiles"),
        (TILED.replace(":T(8,128)", ""), ""),
        (TILED.replace("bitcast", "reshape"), ""),
        (TILED.replace(":T(8,128)", "").replace(", sharding", ', metadata={op_name="T(8,128)"}, sharding'), ""),
    ],
)
def test_bitcasts_are_of_tensors_whose_layout_is_said(text: str, words: str) -> None:
    if words:
        with pytest.raises(Unreadable, match=re.escape(words)):
            require_plain_bitcasts(text)
    else:
        require_plain_bitcasts(text)


# ------------------------------------------------------------------ before the partitioner, or behind it

CUT = """HloModule jit_f, HEADnum_partitions=4
ENTRY main.1 {
  x.1 = f32[8,8]{1,0} parameter(0)ARG
  w.1 = f32[8,8]{1,0} parameter(1), sharding={replicated}
  ROOT dot.2 = f32[8,8]{1,0} dot(x.1, w.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[4,1]<=[4]}
}
"""
PRODUCT = "  %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>\n"
TWO = "%x: tensor<8x8xf32>, %w: tensor<8x8xf32>"
FOUR_TIMES = (
    "  %s = stablehlo.concatenate %r, %r, %r, %r, dim = 0 : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>,"
    " tensor<8x8xf32>) -> tensor<32x8xf32>\n  return %s : tensor<32x8xf32>"
)
INLINE = """module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%arg0) in_shardings=[SAID] out_shardings=[SAID] manual_axes={"x"} (%arg1: tensor<8x8xf32>) {
      sdy.return %arg1 : tensor<8x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}"""


@needs_jax
@pytest.mark.torch
def test_texts_before_the_partitioner_and_behind_it(tmp_path: Path) -> None:
    whole = ", sharding={replicated}"
    cut = ", sharding={devices=[4,1]<=[4]}"
    single = module(TWO, "tensor<8x8xf32>", PRODUCT + "  return %r : tensor<8x8xf32>")
    said = single.replace("(tensor<8x8xf32>) {", '(tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) {', 1)
    tuples = "tuple<tensor<8x8xf32>, tensor<8x8xf32>>"
    texts = {
        "one.mlir": single,
        "four.mlir": module(TWO, "tensor<32x8xf32>", PRODUCT + FOUR_TIMES),
        "results.hlo": CUT.replace("HEAD", "").replace("ARG", whole),
        "unsaid.hlo": CUT.replace("HEAD", "").replace("ARG", ""),
        "results.mlir": said.replace("@m {", "@m attributes {mhlo.num_partitions = 4 : i32} {"),
        "before.hlo": CUT.replace("HEAD", "").replace("ARG", cut),
        "behind.hlo": CUT.replace("HEAD", "is_scheduled=true, ").replace("ARG", whole),
        "local.hlo": CUT.replace("HEAD", "is_scheduled=true, ").replace("ARG", cut),
        "same.mlir": SAME,
        "inline.mlir": INLINE.replace("SAID", '<mesh<["x"=4]>, [{}, {}]>'),
        "shape.hlo": "HloModule f, num_partitions=2\nENTRY main {\n  x = f32[8,8] parameter(0), sharding={replicated}\n"
        "  ROOT r = f32[7] reshape(x)\n}\n",
        "place.hlo": "HloModule f, num_partitions=2\nENTRY main {\n  x = f32[8,8] parameter(1), sharding={replicated}\n"
        "  ROOT r = f32[8,8] negate(x)\n}\n",
        "token.mlir": SAME.replace("@main(", "@main(%k: !stablehlo.token, "),
        "tuple.mlir": module("%x: tensor<8x8xf32>", tuples, f"  %t = stablehlo.tuple %x, %x : {tuples}\n  return %t : {tuples}"),
    }  # fmt: skip
    judged(
        tmp_path,
        texts,
        {
            "results alone": ("one.mlir", "results.hlo", 3, "cuts its results alone"),
            "results alone, four times": ("four.mlir", "results.hlo", 3, "cuts its results alone"),
            "nothing said of an argument": ("four.mlir", "unsaid.hlo", 3, "cuts its results alone"),
            "StableHLO": ("four.mlir", "results.mlir", 3, "cuts its results alone"),
            "arguments too": ("one.mlir", "before.hlo", 0, ""),
            "arguments too, four times": ("four.mlir", "before.hlo", 10, "different"),
            "a schedule": ("four.mlir", "behind.hlo", 0, ""),
            "a schedule, one product": ("one.mlir", "behind.hlo", 10, "different"),
            "a schedule, and parts as large as the whole": ("one.mlir", "local.hlo", 3, "as it is said to lie it has (2, 8)"),
            "a mesh inside of a sharding": ("same.mlir", "inline.mlir", 3, "a sharding that is not known here"),
            "a shape that XLA ends the process for": ("same.mlir", "shape.hlo", 3, "XLA does not read it: Check failed"),
            "a place that XLA ends the process for": ("same.mlir", "place.hlo", 3, "XLA does not read it: Check failed"),
            "a token": ("token.mlir", "token.mlir --ranks 1", 3, "element type !stablehlo.token is not known"),
            "a tuple": ("same.mlir", "tuple.mlir --ranks 1", 3, "element type tuple<"),
        },
    )  # fmt: skip
