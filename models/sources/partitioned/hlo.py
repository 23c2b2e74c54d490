"""Reads HLO text, as XLA writes it before and after its partitioner, into the StableHLO that `machine` reads.  XLA's
annotations say where tensors lie:

    %w1 = f32[8,4]{1,0} parameter(1), sharding={devices=[1,4]<=[4]}      rank r has columns 4r to 4r + 4 of 16

XLA's own parser reads the text.  A fusion is a call of its computation: it says how code is made, nothing of numbers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Final, cast

import numpy as np

from ...equality.captured import Unreadable
from ..jax.ir import Op

_FUSION: Final = re.compile(r"^(\s*(?:ROOT )?%?[\w.-]+ = .*?[\])}] )fusion\((.*)$", re.MULTILINE)
_PARSES: Final = """
import sys
from importlib import import_module
try:
    found = import_module(sys.argv[1]).hlo_module_from_text(sys.stdin.buffer.read().decode())
except Exception as error:
    sys.exit(str(error))
sys.stdout.buffer.write(found.as_serialized_hlo_module_proto())
"""
"""What the process runs that parses HLO text."""
_COMMENTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
_INSTRUCTION: Final = re.compile(r"\s(?:ROOT\s+)?(?=%?[\w.-]+\s*=\s*[(\s]*(?:pred|token|opaque|[a-z]+\d\w*)\s*\[)")
_MADE: Final = re.compile(r"%?[\w.-]+=(.*?[\])}])([a-z][\w-]*)\(")
_NAMED: Final = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = ")
_TILES: Final = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"( last_tile_dim_replicate| last_tile_dims=\{[a-z, ]+\})?\}"
)


@dataclass(frozen=True)
class Tiles:
    """Which device has which block of every dimension: `devices` by block, blocks in row-major order."""

    blocks: tuple[int, ...]
    devices: tuple[int, ...]
    extra: int = 0
    """Trailing dimensions of `blocks` along which devices have the same."""

    @property
    def cuts(self) -> bool:
        """Whether any dimension is cut."""
        return prod(self.blocks[: len(self.blocks) - self.extra]) > 1

    def part(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        """What a rank has of a tensor of this shape.  Raises `Unreadable` for one that is not cut evenly.

        >>> tiles_of("{devices=[2,1,2]<=[4] last_tile_dim_replicate}").part((6, 8), 3)
        (slice(3, 6, None), slice(0, 8, None))
        """
        if not self.blocks:
            return tuple(slice(0, n) for n in shape)
        if rank not in self.devices or len(self.blocks) - self.extra != len(shape):
            raise Unreadable(f"a sharding in blocks {list(self.blocks)} of a tensor of shape {tuple(shape)}")
        at = np.unravel_index(self.devices.index(rank), self.blocks)
        found = []
        for n, block, many in zip(shape, at, self.blocks, strict=False):
            if n % many:
                raise Unreadable(f"a dimension of {n} in {many} blocks is not cut evenly")
            found.append(slice(int(block) * n // many, (int(block) + 1) * n // many))
        return tuple(found)


def tiles_of(text: str) -> Tiles:
    """A sharding as XLA writes it.  Raises `Unreadable` for one that is not known here.

    >>> tiles_of("{devices=[2,2]<=[2,2]T(1,0)}").devices
    (0, 2, 1, 3)
    """
    if text == "{replicated}":
        return Tiles((), ())
    found = _TILES.fullmatch(text)
    if found is None or "manual" in text:
        raise Unreadable(f"a sharding that is not known here: {text[:200]}")
    blocks = _integers(found[1])
    if found[4] is not None:
        devices = _integers(found[4])
    else:
        sizes = _integers(found[2])
        turned = _integers(found[3]) if found[3] else tuple(range(len(sizes)))
        devices = tuple(int(n) for n in np.arange(prod(sizes)).reshape(sizes).transpose(turned).reshape(-1))
    if prod(blocks) != len(devices) or len(set(devices)) != len(devices):
        raise Unreadable(f"a sharding of {prod(blocks)} blocks on {len(devices)} devices: {text[:200]}")
    extra = 0 if found[5] is None else 1 + found[5].count(",")
    return Tiles(blocks, devices, extra)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def without_comments(text: str, strings: bool = True) -> str:
    """A text of HLO or MLIR without its comments, and without what stands in `"`, unless `strings` are kept.

    >>> without_comments('a="/* b */", /* c */ d // e', False)
    'a="",  d '
    """

    def text_of(found: re.Match[str]) -> str:
        return "" if found[0][0] == "/" else found[0] if strings else '""'

    return _COMMENTED.sub(text_of, text)


def instructions(text: str) -> list[str]:
    """What HLO text says, instruction by instruction, without white space, comments and what stands in `"`.

    >>> instructions("ENTRY f { %a = f32[8] add(%x, /* or */ %y), m={n=1}\\n ROOT %b = (f32[8]) tuple(%a) }")
    ['ENTRYf{', '%a=f32[8]add(%x,%y),m={n=1}', '%b=(f32[8])tuple(%a)}']
    """
    return ["".join(part.split()) for part in _INSTRUCTION.split(without_comments(text, strings=False))]


def require_plain_bitcasts(text: str) -> None:
    """Raises `Unreadable` for bitcasts where tensors lie in tiles, or nothing says how they lie: what a bitcast does to
    numbers hangs on it.
    """
    kinds = [found for line in instructions(text) if (found := _MADE.match(line))]
    if not any(k[2] == "bitcast" for k in kinds):
        return
    if tiled := [k for k in kinds if re.search(r":[^{}]*T\(", k[1])]:
        raise Unreadable(f"a bitcast in a text of tensors that lie in tiles ({tiled[0][0][:100]}..) is not known here")
    if bare := [k for k in kinds if re.search(r"\[\d+,[\d,]+\](?!\{)", k[1])]:
        raise Unreadable(
            f"a bitcast in a text that does not say how tensors lie ({bare[0][0][:100]}..): write layouts as well"
        )


def header_of(text: str) -> dict[str, set[str]]:
    """What the first words of HLO text say of the module, or the attributes of MLIR modules, that are numbers or words;
    several values where it says several.

    >>> header_of("/* num_partitions=4 */ HloModule f, is_scheduled=true, num_partitions=2")
    {'is_scheduled': {'true'}, 'num_partitions': {'2'}}
    >>> header_of("module @f attributes {mhlo.num_partitions = 8 : i32} { }")
    {'num_partitions': {'8'}}
    """
    text, found = without_comments(text, strings=False), dict[str, set[str]]()
    if text.lstrip().startswith("HloModule"):
        inner = 1
        while inner:  # attributes of attributes, and bodies
            text, inner = re.subn(r"\{[^{}]*\}", "", text)
        said = re.match(r"\s*HloModule\s+[^\s,]+(?:\s*,\s*\w+\s*=\s*[^\s,]*)*", text)
        rows = re.findall(r",\s*(\w+)\s*=\s*([^\s,]+)", said[0] if said else "")
    else:
        rows = re.findall(r"\bmhlo\.(num_partitions|num_replicas)\s*=\s*(\d+)", text)
    for name, value in rows:
        found.setdefault(name, set()).add(value)
    return found


def stablehlo_of(text: str) -> bytes:
    """The module that HLO text says.  Raises `Unreadable`, also where numbers of constants are left out."""
    from jax.extend import mlir

    if "{...}" in text:
        raise Unreadable(
            "the text leaves out numbers of large constants ({...}): write it with"
            " print_large_constants=True (or XLA_FLAGS=--xla_dump_to with --xla_dump_large_constants)"
        )
    require_plain_bitcasts(text)
    found = _parsed(_without_fusions(text))
    try:
        return cast("bytes", mlir.hlo_to_stablehlo(found))
    except Exception as error:
        raise Unreadable(f"XLA does not read it: {str(error)[:500]}") from error


def _parsed(text: str) -> bytes:
    """The message of the module that HLO text says.  XLA ends the process that parses a text which is against some of
    its rules, so another process does.  Raises `Unreadable`.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PARSES, _xla().__name__],
        input=text.encode(),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    if done.returncode:
        told = done.stderr.decode(errors="replace")
        broken = re.search(r"Check failed: .*", told)
        raise Unreadable(f"XLA does not read it: {(broken[0] if broken else told.strip())[:500]}")
    return done.stdout


def _without_fusions(text: str) -> str:
    """Fusions as calls.

    >>> _without_fusions("  %f = f32[2]{0} fusion(%a), kind=kLoop, calls=%c, metadata={}")
    '  %f = f32[2]{0} call(%a), to_apply=%c, metadata={}'
    """

    def as_call(line: re.Match[str]) -> str:
        rest = re.sub(r", (?:kind=k\w+|output_to_operand_aliasing=\{(?:[^{}]|\{[^{}]*\})*\})", "", line[2])
        return f"{line[1]}call({rest.replace(', calls=', ', to_apply=', 1)}"

    return _FUSION.sub(as_call, text)


def _xla() -> ModuleType:
    """The part of JAX that reads HLO text; it has moved between versions."""
    for name in ("jaxlib._hlo", "jaxlib._jax", "jaxlib.xla_extension"):
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "hlo_module_from_text"):
            return module
    raise Unreadable("this version of JAX does not read HLO text: write StableHLO (lowered.as_text())")


@dataclass(frozen=True)
class Lines:
    """Where operators of a text stand: the user's line where the text says it, else the line of the text."""

    name: str
    places: Mapping[str, str]

    def __call__(self, op: Op) -> str:
        """Of an operator: HLO's instructions have names, StableHLO's places in the text."""
        said = str(op.location)
        if (user := re.search(r'"([^"]+\.(?:py|mlir|hlo|txt))":(\d+)', said)) is not None:
            return f"{user[1].rpartition('/')[2]}:{user[2]}"
        if (here := re.search(r'"-":(\d+)', said)) is not None:
            return f"{self.name}:{here[1]}"
        found = re.search(r'loc\("([^"]+)"', said)
        return self.places.get(found[1], "") if found else ""


def lines_of(name: str, text: str, before: Lines | None = None) -> Lines:
    """Of the text of a file of this name; or of what XLA made of it, whose lines were those of `before`: then lines
    count that it says, or that instructions had whose names it says.

    >>> lines_of("step.hlo", "ENTRY main {\\n  %add.1 = f32[] add(%a, %b)").places
    {'add.1': 'step.hlo:2'}
    """
    listed = re.findall(r'^(\d+) "([^"]+)"$', _section(text, "FileNames"), re.MULTILINE)
    files = {k: name if file == "-" else file for k, file in listed}
    locations = {
        k: f"{files[f].rpartition('/')[2]}:{n}"
        for k, f, n in re.findall(
            r"^(\d+) \{file_name_id=(\d+).*? line=(\d+)", _section(text, "FileLocations"), re.MULTILINE
        )
        if f in files
    }
    frames = dict(re.findall(r"^(\d+) \{file_location_id=(\d+)", _section(text, "StackFrames"), re.MULTILINE))
    places = dict[str, str]() if before is None else dict(before.places)  # XLA keeps names of instructions
    for number, line in enumerate(text.splitlines(), 1):
        if (named := _NAMED.match(line)) is None:
            continue
        frame = re.search(r"stack_frame_id=(\d+)", line)
        older = re.search(r'source_file="([^"]+)" source_line=(\d+)', line)
        if older is not None:
            user: str | None = f"{name if older[1] == '-' else older[1].rpartition('/')[2]}:{older[2]}"
        else:
            user = locations.get(frames.get(frame[1], "")) if frame else None
        if user or before is None:
            places[named[1]] = user or f"{name}:{number}"
    return Lines(name, places)


def _section(text: str, title: str) -> str:
    """The lines behind a title, up to an empty one."""
    found = re.search(rf"^{title}\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    return "" if found is None else found[1]
