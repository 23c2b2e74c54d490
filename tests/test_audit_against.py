"""Audits that compare two configurations: what decides, by how much, and which measurement would turn the answer."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.__main__ import run
from shardproof.formal.plans.pipelines.compared import (
    ANY_BAR,
    BARS,
    Compared,
    Difference,
    Faster,
    Manner,
    decide,
    differences,
    error_bound_of_pair,
)
from shardproof.formal.plans.pipelines.composed import Composed
from shardproof.models.cost.kernels import Kernels
from shardproof.models.layout.targets.degrees import Flags

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "benchmarks"))

import published_pairs
from configurations.predicting import Told
from configurations.rows import Model, Published

MODEL = "llama:layers=2,sequence=2048,width=4096,heads=32,kv_heads=8,hidden=14336,vocabulary=32000"
STEP = ("--batch", "64", "--train", "adam", "--attention", "fused", "--machine", "dgx-h100:1x8")
SECONDS = st.integers(1, 10**6).map(lambda n: Fraction(n, 1000))


def composed(parts: dict[str, Fraction]) -> Composed:
    return Composed(
        sum(parts.values(), Fraction(0)), {}, parts, ({},), Fraction(1, 2), Fraction(1), "bf16", Fraction(0)
    )


def pair(a: dict[str, Fraction], b: dict[str, Fraction], bar: Fraction) -> Compared:
    return Compared(composed(a), composed(b), (Difference.TENSOR,), bar)


@given(
    st.dictionaries(st.sampled_from("abcd"), SECONDS, min_size=1),
    st.dictionaries(st.sampled_from("abcd"), SECONDS, min_size=1),
    st.integers(1, 300).map(lambda n: Fraction(n, 100)),
)
def test_a_measurement_says_what_moving_its_term_alone_does(
    a: dict[str, Fraction], b: dict[str, Fraction], bar: Fraction
) -> None:
    found = pair(a, b, bar)
    swapped = pair(b, a, bar)
    opposite = {Faster.FASTER: Faster.SLOWER, Faster.SLOWER: Faster.FASTER, Faster.UNDECIDED: Faster.UNDECIDED}
    assert swapped.verdict is opposite[found.verdict] and swapped.difference == -found.difference
    assert sum(x - y for _, x, y in found.terms) == found.difference
    for m in found.measurements:

        def moved(f: Fraction, term: str = m.term) -> Fraction:
            scaled = [{n: v * (f if n == term else 1) for n, v in side.items()} for side in (a, b)]
            return sum(scaled[0].values(), Fraction(0)) - sum(scaled[1].values(), Fraction(0))

        ends = sorted((moved(1 / (1 + bar)), moved(1 + bar)))
        assert [m.low, m.high] == ends
        assert m.turns is None or moved(m.turns) == 0
        worse = ends[1] if found.difference < 0 else -ends[0]
        assert m.regret == max(0, worse)
    regrets = [m.regret for m in found.measurements]
    assert regrets == sorted(regrets, reverse=True)


@given(SECONDS, SECONDS, st.integers(0, 300).map(lambda n: Fraction(n, 100)))
def test_a_wider_bar_decides_less_and_never_otherwise(a: Fraction, b: Fraction, bar: Fraction) -> None:
    narrow, wide = decide(a / b, bar), decide(a / b, bar + 1)
    assert wide in (narrow, Faster.UNDECIDED)
    assert narrow is not Faster.FASTER or a < b
    assert narrow is not Faster.SLOWER or a > b


def test_every_way_of_differing_is_one() -> None:
    base = Manner(Flags("Megatron", tp=2, pp=2, micro_batch=1), 8)
    others = {
        Difference.SOFTWARE: replace(base, kernels=Kernels(chains=False)),
        Difference.PRECISION: replace(base, kernels=Kernels(eight=True)),
        Difference.RECOMPUTE: replace(base, recompute="all"),
        Difference.SHARDING: replace(base, flags=replace(base.flags, zero=1)),
        Difference.TENSOR: replace(base, flags=replace(base.flags, tp=4)),
        Difference.STAGES: replace(base, chunks=2),
        Difference.MICRO_BATCH: replace(base, micro_batches=4),
    }
    assert set(others) == set(Difference) and differences(base, base) == () and error_bound_of_pair(()) == 0
    for kind, other in others.items():
        assert differences(base, other) == (kind,)
        assert error_bound_of_pair((kind,)) == BARS.get(kind, ANY_BAR)
    assert error_bound_of_pair((Difference.RECOMPUTE, Difference.TENSOR)) == max(ANY_BAR, BARS[Difference.TENSOR])


def asked(
    folder: Path, first: str, second: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, object]]:
    for name, text in (("first.txt", first), ("second.txt", second)):
        (folder / name).write_text(text, encoding="utf-8")
    files = ("--strategy", str(folder / "first.txt"), "--against", str(folder / "second.txt"))
    code = run(["audit", MODEL, *STEP, *files, *more, "--json"])
    assert code in (0, 5, 10)
    return code, json.loads(capsys.readouterr().out)


TP8 = "--tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 2"
TP2 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 2"
TP8_WHOLE = "--tensor-model-parallel-size 8 --micro-batch-size 64"
DP8 = "--tensor-model-parallel-size 1 --micro-batch-size 8"


def test_the_table_adds_up_and_the_measurements_are_commands_that_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = asked(tmp_path, TP8, TP2, capsys)
    assert (code, found["verdict"]) == (5, "undecided")
    terms, sides = found["terms"], (found["strategy"], found["against"])
    assert isinstance(terms, list) and all(isinstance(s, dict) for s in sides)
    for key, side in zip(("seconds", "against"), sides, strict=True):
        assert sum(t[key] for t in terms) == pytest.approx(side["seconds"])  # type: ignore[index,call-overload]
    assert {"products", "attention", "tensor parallel, gpus", "bubble"} <= {t["name"] for t in terms}
    listed = found["measurements"]
    assert isinstance(listed, list) and listed
    for m in listed:
        words = m["command"].split()
        assert words[:3] == ["shardproof", "machine", "calibrate"] and words[3] == "dgx-h100:1x8"
        assert run([*words[1:3], "--help"]) == 0


def test_the_other_way_round_is_the_opposite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = asked(tmp_path, TP8, DP8, capsys)
    fast = asked(tmp_path, DP8, TP8, capsys)
    assert (slow[0], slow[1]["verdict"]) == (10, "slower") and (fast[0], fast[1]["verdict"]) == (0, "faster")
    assert slow[1]["measurements"] == [] and slow[1]["differ_in"] == ["tensor parallelism", "micro-batches"]
    alike = asked(tmp_path, TP8, TP8, capsys)
    assert (alike[0], alike[1]["differ_in"], alike[1]["difference"]) == (5, [], 0.0)


def test_people_read_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(TP8, encoding="utf-8")
    (tmp_path / "b.txt").write_text(TP2, encoding="utf-8")
    line = ["audit", MODEL, *STEP, "--strategy", str(tmp_path / "a.txt"), "--against", str(tmp_path / "b.txt")]
    code = run([*line, "--memory", "1GiB"])
    text = capsys.readouterr().out
    assert code == 5 and "a.txt does not fit" in text
    assert re.search(r"^undecided: a.txt is predicted to take \S+ times as long as b.txt$", text, re.MULTILINE)
    assert "shardproof machine calibrate dgx-h100:1x8 --from" in text
    (tmp_path / "b.txt").write_text("[0, 0]", encoding="utf-8")
    assert run(line) == 3 and "no settings of a framework" in capsys.readouterr().err


def told(seconds: float, predicted: float, family: str, tp: int, batch: int = 8) -> Told:
    row = Published(
        family, "r", seconds, Model(64, 64, 1, 1, 64, 1), 64, "dgx-h100:1x8", 8,
        Flags("Megatron", tp=tp, micro_batch=1), batch * tp,
    )  # fmt: skip
    return Told(row, predicted, 0.0, "")


def test_pairs_are_judged_by_the_bars_of_other_families() -> None:
    """Twenty-one pairs of one family, each off by a factor 2, are the bar of a pair of another."""
    exact = [x for b in range(8, 8 + 40 * 8, 8) for x in (told(1, 1, "one", 1, b), told(2, 4, "one", 2, b))]
    for predicted, expected in ((1.9, Faster.UNDECIDED), (2.1, Faster.SLOWER), (0.4, Faster.FASTER)):
        other = [told(1, 1, "two", 1), told(1.2, predicted, "two", 2)]
        pairs = published_pairs.pairs_of([*exact, *other])
        assert len(pairs) == 41
        verdicts = {v for p, v in published_pairs.judged(pairs) if p.slow.row.family == "two"}
        assert verdicts == {expected}
        found = published_pairs.document(pairs)["families"]
        assert isinstance(found, dict)
        assert found["two"] == {
            "pairs": 1, "decided": int(expected is not Faster.UNDECIDED), "wrong": int(expected is Faster.FASTER)
        }  # fmt: skip
    near = [told(1, 1, "two", 1), told(1.05, 9, "two", 2)]
    assert not [v for p, v in published_pairs.judged(published_pairs.pairs_of(near)) if v]


def test_the_bars_of_the_package_are_those_of_the_page() -> None:
    text = published_pairs.PAGE.read_text(encoding="utf-8")
    said = re.search(r"takes: (.*)\.$", text, re.MULTILINE)
    assert said is not None
    bars = dict(re.findall(r"([a-z -]+?) (\d+)%", said[1].replace(", ", " ")))
    expected = {kind.value: str(round(100 * bar)) for kind, bar in BARS.items()} | {"any": str(round(100 * ANY_BAR))}
    assert {k.strip(): v for k, v in bars.items()} == expected
    row = re.search(r"^\| all \| (\d+) \| (\d+) \((\d+)%\) \| (\d+) \|$", text, re.MULTILINE)
    assert row is not None and int(row[1]) >= 40 and 2 * int(row[2]) >= int(row[1]) and row[4] == "0"


@pytest.mark.slow
def test_pairs_of_the_tables_that_come_along_are_not_decided_wrongly() -> None:
    from configurations.predicting import predicted
    from configurations.tables import everything

    rows = everything(HERE / "data" / "measured").rows
    found = published_pairs.document(
        published_pairs.pairs_of([t for r in rows if isinstance(t := predicted(r), Told)])
    )["all"]
    assert isinstance(found, dict)
    assert found["pairs"] > 1000 and found["wrong"] == 0 and found["decided"] > 0.45 * found["pairs"]
