"""Machines: exact constants, sources, sizes, canonical JSON, and calm refusal of whatever a file may hold."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.models.machine.error_bounds import step_error_bound
from shardproof.models.machine.machine import BUILTIN, MAX_FILE, Machine, MachineError, builtin_names, load_machine
from shardproof.models.machine.quantities import QuantityError, exact_from, exact_text, parse, show
from shardproof.models.machine.text import render, to_toml
from shardproof.models.program.graph import ELEMENT_BYTES

GOOD = """
name = "small"
[[level]]
name = "nodes"
size = 2
bandwidth = "9e9"
latency = "10 us"
[[level]]
name = "gpus"
size = 4
bandwidth = "270 GB/s"
latency = "5 us"
[[resource]]
name = "switch"
devices = 2
capacity = "10 GB/s"
traffic = ["gpus"]
[[device_class]]
name = "g"
memory = "80 GiB"
bandwidth = "1.4 TB/s"
launch = "2 us"
peaks = { float32 = "19.5 Tflop/s", float16 = "150 Tflop/s" }
[sources]
"level.nodes" = "data sheet of the NIC"
"level.gpus.bandwidth" = "data sheet of the switch"
"level.gpus.latency" = "assumption: like others"
"resource.switch.capacity" = "measured"
"device_class.g" = "data sheet"
"device_class.g.launch" = "measured"
"""


def read(tmp_path: Path, text: str | bytes) -> Machine:
    path = tmp_path / "m.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_machine("m.toml", tmp_path)


def test_constants_are_exact_and_every_one_has_its_most_specific_source(tmp_path: Path) -> None:
    m = read(tmp_path, GOOD)
    assert m.hierarchy == (2, 4) and m.devices == 8 and [x.name for x in m.levels] == ["nodes", "gpus"]
    assert m.levels[0].bandwidth == 9 * 10**9 and m.levels[1].latency == Fraction(5, 10**6)
    assert m.device.bandwidth == 14 * 10**11 and m.device.memory == 80 << 30 and m.device.launch == Fraction(1, 500000)
    assert m.device.peak("float32") == 195 * 10**11
    sources = dict(m.sources)
    assert sources["level.nodes.latency"] == "data sheet of the NIC" and sources["device_class.g.launch"] == "measured"
    assert sources["device_class.g.peaks.float16"] == "data sheet"
    assert len(sources) == 10  # 2 x 2 links, memory, bandwidth, launch, 2 peaks, capacity


def test_coordinates_are_row_major_digits() -> None:
    m = load_machine("summit:4x2x3")
    assert [m.coordinates(r) for r in (0, 1, 3, 6, 23)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (3, 1, 2)]
    assert len({m.coordinates(r) for r in range(m.devices)}) == 24
    for rank in (-1, 24):
        with pytest.raises(MachineError, match="no rank"):
            m.coordinates(rank)


def test_a_machine_is_hashed_once_and_found_again_in_another_process() -> None:
    one, other = load_machine("cloud-a100:2x4"), load_machine("cloud-a100:2x4")
    assert {one: "found"}[other] == "found" and hash(one) != hash(one.resized((4, 4)))
    code = (
        "import pickle, sys; from shardproof.models.machine.machine import load_machine\n"
        "assert {load_machine('cloud-a100:2x4'): 1}[pickle.load(sys.stdin.buffer)] == 1"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(one), env=environment, check=True, timeout=120)


def test_specs() -> None:
    assert load_machine("4x8") == load_machine("dgx-a100") == load_machine("dgx-a100:4x8")
    assert load_machine("cloud-a100:4x8") == load_machine("cloud-a100") != load_machine("4x8")
    assert load_machine("32x8").hierarchy == (32, 8) and load_machine("localhost:8").hierarchy == (8,)
    assert load_machine("p2-a100:2x16").hierarchy == (2, 16) and load_machine("summit").hierarchy == (32, 2, 3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("8", ("2 levels", "nodesxgpus", "8")),
        ("cloud-a100:2x2x2", ("2 levels", "2x2x2")),
        ("cloud-a100:0x8", ("size", "must be 1")),
        ("4096x4096", ("devices", "at most")),
        ("nonsense", ("cloud-a100", "localhost")),
        ("nonsense:4x8", ("nonsense:4x8",)),
        ("", ("built-in",)),
        ("missing.toml", ("missing.toml", "no such file")),
        ("\0.toml", ("no such file",)),
        ("cloud-a100:", ("neither",)),
        ("../machines/cloud-a100", ("neither",)),
    ],
)
def test_bad_specs_name_the_next_step(spec: str, words: tuple[str, ...]) -> None:
    with pytest.raises(MachineError) as e:
        load_machine(spec)
    assert all(w in str(e.value) for w in words), str(e.value)


def test_a_file_takes_sizes_too(tmp_path: Path) -> None:
    read(tmp_path, GOOD)
    assert load_machine("m.toml:8x4", tmp_path).hierarchy == (8, 4)
    with pytest.raises(MachineError, match="does not divide"):
        load_machine("m.toml:3x1", tmp_path)  # the switch joins two consecutive devices


@pytest.mark.parametrize("name", builtin_names())
def test_builtins_cover_every_dtype_and_survive_json(name: str) -> None:
    m = load_machine(name)
    assert m.name == name and [d for d, _ in m.device.peaks] == sorted(ELEMENT_BYTES)
    again = Machine.from_json(m.to_json())
    assert again == m and again.to_json() == m.to_json() and again.sha256() == m.sha256()
    assert all(text.strip() for _, text in m.sources)
    shown = render(m)
    assert all(level.name in shown for level in m.levels) and all(text in shown for _, text in m.sources)


def test_constants_of_the_research_notes() -> None:
    names = ("cloud-a100", "p2-a100", "p2-v100")
    got = {n: [(x.bandwidth / 10**9, x.latency * 10**6) for x in load_machine(n).levels] for n in names}
    assert got["cloud-a100"] == got["p2-a100"] == [(9, 10), (270, 5)]
    assert [b for b, _ in got["p2-v100"]] == [Fraction("10.2"), 135]
    a100 = load_machine("cloud-a100").device
    assert a100.peak("bfloat16") == 150 * 10**12 and a100.bandwidth == 14 * 10**11


def test_sizes_change_the_hash_and_links_do_not_change_with_sizes() -> None:
    a, b = load_machine("cloud-a100:4x8"), load_machine("cloud-a100:8x4")
    assert a.sha256() != b.sha256() and [x.bandwidth for x in a.levels] == [x.bandwidth for x in b.levels]


def test_a_missing_peak_names_dtype_and_file(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as e:
        read(tmp_path, GOOD).device.peak("float64")
    assert "float64" in str(e.value) and "m.toml" in str(e.value) and "float16" in str(e.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('latency = "5 us"\n', "", ("m.toml", "[[level]] 2", "latency", "is missing", "add latency")),
        ('bandwidth = "9e9"', "bandwidth = 9e9", ("[[level]] 1 'nodes', bandwidth", 'bandwidth = "9e9"')),
        ('bandwidth = "9e9"', "bandwidth = 9000000000", ("bare number", 'bandwidth = "9000000000"')),
        ('bandwidth = "9e9"', 'bandwidth = "9 GBit"', ("unknown unit 'GBit'", "GB/s")),
        ('bandwidth = "9e9"', 'bandwidth = "9e9999"', ("not a decimal", "9 GB/s")),
        ('bandwidth = "9e9"', 'bandwidth = "9e99"', ("exponent",)),
        ('bandwidth = "9e9"', 'bandwidth = "-9"', ("not a decimal",)),
        ('bandwidth = "9e9"', 'bandwidth = "nan"', ("not a decimal",)),
        ('bandwidth = "9e9"', 'bandwidth = "0"', ("greater than 0",)),
        ('bandwidth = "9e9"', "bandwidth = inf", ("bare number",)),
        ('bandwidth = "9e9"', "bandwidth = true", ("must be text, is bool",)),
        ('bandwidth = "9e9"', "bandwidth = 1979-05-27", ("must be text, is date",)),
        ("size = 2", "size = 2.0", ("size", "whole number")),
        ("size = 2", "size = true", ("size", "whole number")),
        ("size = 2", "size = 0", ("size", "whole number")),
        ("size = 2", 'size = "2"', ("size", "whole number")),
        ("size = 2", "size = " + "9" * 5000, ("is not TOML",)),
        ("size = 2", "size = 1048576", ("devices", "at most")),
        ('name = "gpus"', 'name = "nodes"', ("[[level]] 2, name", "twice")),
        ('name = "gpus"', 'name = "g p u"', ("is not a name",)),
        ("size = 2", "size = 2\nspeed = 3", ("'speed'", "is unknown", "known: name, size")),
        ("float32 =", "flaot32 =", ("'flaot32'", "is unknown", "float32")),
        ('memory = "80 GiB"', 'memory = "0.5 B"', ("whole number of bytes",)),
        (
            '"level.gpus.latency" = "assumption: like others"\n',
            "",
            ("[[level]] 2 'gpus', latency", "has no source", '"level.gpus.latency"'),
        ),
        ('"data sheet of the NIC"', '" "', ("must be text",)),
        ('"data sheet of the NIC"', "3", ("must be text",)),
        ('"level.gpus.latency"', '"level.gpu.latency"', ("has no source",)),
        ("[sources]", '[sources]\n"level.x.latency" = "?"', ("belongs to no constant", "level.nodes.latency")),
        ("[sources]", "[elsewhere]", ("sources", "is missing")),
        ('traffic = ["gpus"]', 'traffic = ["moon"]', ("traffic", "levels: nodes, gpus")),
        ('traffic = ["gpus"]', 'traffic = [["gpus"]]', ("traffic",)),
        ("devices = 2", "devices = 3", ("does not divide the 8",)),
        ("[[device_class]]", "[device_class]", ("array of tables", "[[device_class]]")),
        ('peaks = { float32 = "19.5 Tflop/s", float16 = "150 Tflop/s" }', "peaks = {}", ("peaks", "at least one")),
        ('name = "small"', 'name = "small"\nname = "twice"', ("is not TOML",)),
        ('name = "small"', "name = " + "[" * 3000, ("is not TOML",)),
    ],
)
def test_bad_files_name_place_and_next_step(tmp_path: Path, old: str, new: str, words: tuple[str, ...]) -> None:
    assert old in GOOD
    with pytest.raises(MachineError) as e:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert all(w in str(e.value) for w in words), str(e.value)


def test_files_that_are_not_text(tmp_path: Path) -> None:
    for raw, words in (
        (b"\xff\xfe", "UTF-8"),
        (b"#" * (MAX_FILE + 1), "larger"),
        (b"", "is missing"),
        (b"level = 3\nname='x'\ndevice_class=1\nsources=2", "array of tables"),
    ):
        with pytest.raises(MachineError, match=words):
            read(tmp_path, raw)
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(MachineError, match="no such file"):
        load_machine("dir.toml", tmp_path)
    two = GOOD.replace(
        "[sources]", GOOD[GOOD.index("[[device_class]]") : GOOD.index("[sources]")].replace('"g"', '"h"') + "[sources]"
    )
    with pytest.raises(MachineError, match="2 of 2 classes have no blocks"):
        read(tmp_path, two)


def _mutants(data: object) -> list[object]:
    """`data` with one leaf or branch replaced by something it should not be."""
    wrong: list[object] = [None, -1, 1 << 70, 1.5, "", "x" * 300, "1/0", "2/4", [], {}, [[]], True]
    out: list[object] = list(wrong)
    if isinstance(data, dict):
        for k, v in data.items():
            out += [{**data, k: w} for w in _mutants(v)] + [{a: b for a, b in data.items() if a != k}]
        out.append({**data, "more": 1})
    elif isinstance(data, list):
        for i, v in enumerate(data):
            out += [data[:i] + [w] + data[i + 1 :] for w in _mutants(v)]
    return out


def test_hostile_json_is_a_machine_error_or_another_valid_machine() -> None:
    good = load_machine("p2-v100")
    accepted = []
    for mutant in _mutants(json.loads(good.to_json())):
        try:
            accepted.append(Machine.from_json(json.dumps(mutant)))
        except MachineError as e:
            assert e.place and e.message
    # what is accepted round-trips and is another machine, except that a launch of 0 may be left out
    assert all(Machine.from_json(m.to_json()) == m for m in accepted)
    assert [m for m in accepted if m.sha256() == good.sha256()] == [good]
    assert len(accepted) < 200
    for text in (
        "",
        "[",
        "[" * 60000,
        "null",
        '{"format":"shardproof-machine/1"}',
        "{" + '"a":1,' * 20000 + '"b":1}',
        '{"name":1,"name":2}',
    ):
        with pytest.raises(MachineError):
            Machine.from_json(text)


@given(st.integers(0, 10**12), st.integers(0, 12), st.sampled_from(["", "k", "M", "G", "T"]))
def test_quantities_are_exact(digits: int, places: int, prefix: str) -> None:
    text = str(digits).rjust(places + 1, "0")
    decimal = f"{text[:-places]}.{text[-places:]}" if places else text
    factor = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}[prefix]
    value = parse(f"{decimal} {prefix}B/s", "rate")
    assert value == Fraction(digits * factor, 10**places)
    assert exact_from(exact_text(value)) == value
    shown = show(value, "rate")
    if not shown.startswith("~") and "e" not in shown:
        assert parse(shown, "rate") == value


@pytest.mark.parametrize(
    "text", ["", " 9", "9 ", "1_000", "+1", "1.", ".5", "1e", "9  GB/s", "0x10", "1,5", "٣", "9e+-1", "9\n"]
)
def test_what_is_not_a_quantity(text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text, "rate")


@pytest.mark.parametrize("text", ["", "01", "2/4", "1/0", "1/1", "-1", "1.0", "1 / 2", "9" * 81])
def test_what_is_not_canonical(text: str) -> None:
    with pytest.raises(QuantityError):
        exact_from(text)


def test_every_toml_in_the_folder_is_a_builtin_of_its_own_name() -> None:
    assert {p.stem for p in BUILTIN.iterdir()} == set(builtin_names())


def test_bars_are_kept_shown_and_part_of_the_identity(tmp_path: Path) -> None:
    """One bar may cover a table; it survives both forms, and machines without bars keep their bytes."""
    text = (BUILTIN / "cloud-a100.toml").read_text()
    bars = '\n[bars]\n"level.nodes" = "10 %"\n"level.nodes.latency" = "50%"\nstep = "24 %"\n"device_class.a100.peaks" = "12.5 %"\n'
    (tmp_path / "m.toml").write_text(text + bars)
    plain, mine = load_machine("cloud-a100"), load_machine("m.toml", tmp_path)
    found = dict(mine.bars)
    assert found["level.nodes.bandwidth"] == Fraction(1, 10) and found["level.nodes.latency"] == Fraction(1, 2)
    assert found["device_class.a100.peaks.bool"] == Fraction(1, 8) and "level.gpus.latency" not in found
    assert found["step"] == Fraction(6, 25) == step_error_bound(mine) and step_error_bound(
        plain
    ) == 0 < step_error_bound(load_machine("dgx-a100"))
    assert Machine.from_json(mine.to_json()) == mine and mine.sha256() != plain.sha256()
    assert "bars" not in plain.to_json() and load_machine("dgx-a100").bars
    (tmp_path / "again.toml").write_text(to_toml(mine))
    assert load_machine("again.toml", tmp_path) == mine
    assert "level.nodes.latency (within 50 %): " in render(mine)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"level.nodes" = "10"', "is not an error bound"),
        ('"level.nodes" = "0 %"', "is not an error bound"),
        ('"level.nodes" = "2000 %"', "is not an error bound"),
        ('"level.nodes" = 10', "must be text"),
        ('"level.nodse" = "10 %"', "belongs to no constant"),
        ('"step.all" = "10 %"', "belongs to no constant"),
        ('step = "0 %"', "is not an error bound"),
        ("", "at least one bar"),
    ],
)
def test_bad_bars_are_refused(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(f"{(BUILTIN / 'cloud-a100.toml').read_text()}\n[bars]\n{line}\n")
    with pytest.raises(MachineError, match=message):
        load_machine("m.toml", tmp_path)


def test_every_field_of_the_file_is_documented() -> None:
    """docs/howto/cluster.md lists what the reader takes, table by table; rows of tables that this version does not
    read (measured forms, error bounds) are not looked at.
    """
    import ast
    import re

    from shardproof.models.machine import reader as module

    root = Path(__file__).resolve().parent.parent
    page = (root / "docs" / "howto" / "cluster.md").read_text(encoding="utf-8").split("<!-- fields: machine -->")[1]
    told: set[tuple[str, str]] = set()
    where = ""
    for first, field in re.findall(r"^\| *(?:`?([\w(). ]*?)`?) *\| *`(\w+)` *\|", page, re.MULTILINE):
        where = first or where
        told.add((where, field))
    home = {
        "read": "(top)",
        "_level": "level",
        "_collectives": "level.all_gather",
        "_device": "device_class",
        "_product": "device_class.product",
        "_attention": "device_class.attention",
        "_resource": "resource",
        "_reduction": "reduction",
        "_profile": "profile",
    }
    tree = ast.parse((root / "models" / "machine" / "reader.py").read_text(encoding="utf-8"))
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    taken: set[tuple[str, str]] = set()
    for function, table in home.items():
        for call in ast.walk(functions.get(function, ast.Pass())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "_keys":
                parts = [c for a in call.args[2:] for c in ast.walk(a)]
                names = [c.value for c in parts if isinstance(c, ast.Constant)]
                names += [n for c in parts if isinstance(c, ast.Name) for n in _texts(getattr(module, c.id, ()))]
                taken |= {(table, name) for name in names}
    kinds = {"_reduction": ("tree_flow", "copy", "switch_quad")}
    kinds |= (
        {"_product": ("launch", "tail", "step", "split", "sum", "result", "odd")} if "_product" in functions else {}
    )
    kinds["_attention"] = ("launch", "pace", "pair", "row", "wave", "band")
    taken |= {(home[function], name) for function, names in kinds.items() for name in names}
    taken = {(table, name) for table, name in taken if name not in ELEMENT_BYTES}
    assert len(taken) > 20 and taken <= told, taken - told
    later = {"(top)": {"bars"}, "level": {"all_gather", "reduce_scatter", "all_reduce", "alltoall"}}
    later |= {"device_class": {"product"}}
    tables = {table for table, _ in taken}
    left = {(t, f) for t, f in told - taken if t in tables and f not in later.get(t, ())}
    assert not left, left


def _texts(value: object) -> tuple[str, ...]:
    """A tuple of words, as they are; anything else holds none."""
    return value if isinstance(value, tuple) and all(isinstance(v, str) for v in value) else ()
