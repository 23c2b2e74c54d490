"""The page of a plan: well formed, complete, and true to the tables; `diff` of two plans."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.report import amount
from shardproof.formal.report.drawing import Palette, strip
from shardproof.formal.report.memory import held_over_time
from shardproof.formal.report.words import OF_JOINT_PLANS, SENTENCES, sentence
from shardproof.models.layout.placement import Placement
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import bytes_text as memory_text
from shardproof.proofs.plan.bundle import write_plan

DOCUMENT = Path(__file__).parent.parent / "docs" / "certificate-format" / "plans.md"
EMPTY = {"meta", "i", "rect", "line", "polygon", "polyline"}


class Reader(HTMLParser):
    """Balanced elements, ids, links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"] or "")
        if tag == "a":
            self.links.append((found["href"] or "").removeprefix("#"))
        elif "href" in found or "src" in found or tag == "script":
            self.loaded.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(path: Path) -> Reader:
    page = path.read_text(encoding="utf-8")
    assert len(page) < 3_000_000
    found = Reader()
    found.feed(page)
    assert found.open == [] and found.loaded == [], "one page, which loads nothing"
    assert len(set(found.ids)) == len(found.ids) and set(found.links) <= set(found.ids)
    return found


def test_the_page_of_a_training_step(tmp_path: Path) -> None:
    plan = shardproof.plan("bert-tiny", "dgx-a100:1x2", train="adam", memory="1GiB")
    plan.save(tmp_path / "p.spz")
    assert run(["report", str(tmp_path / "p.spz"), "-o", str(tmp_path / "p.html")]) == 0
    assert run(["report", str(tmp_path / "p.spz"), "-o", str(tmp_path / "again.html"), "--json"]) == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "p.html").read_bytes(), "same plan, same bytes"
    page = read(tmp_path / "p.html")
    text = " ".join(page.text)
    problem = plan.explain().planning.problem
    assert amount(int(plan.cost_s * problem.scale), problem) in text and "proved optimal" in text
    assert plan.identity in text and "layer{0,1}.attention.query" in text.replace("{0..1}", "{0,1}")
    for flag in plan.assumptions:
        assert flag.partition("(")[0] in text and SENTENCES[flag.partition("(")[0]] in text
    assert {"mesh", "memory", "communication", "decides", "certificate"} <= set(page.ids)
    peak = max(int(v.max()) for v in held_over_time(plan.graph, plan.machine, plan.bundle.choices).values())
    assert memory_text(peak) in text
    words = plan.explain().parallelism()
    assert words.startswith("parallelism ") and words in text and text.index(words) < text.rindex("Mesh and layers")


@pytest.mark.parametrize(("model", "machine"), [("mlp-unity", "localhost:4"), ("bert-tiny", "dgx-a100:2x2")])
def test_memory_is_that_of_the_rows(model: str, machine: str) -> None:
    """On equal devices with even blocks every device is the fullest, so the rows of the problem add up to ours."""
    graph = build_step(build(model), "adam").graph
    planned = plan_graph(graph, load_machine(machine), memory_limit=1 << 40)
    assert planned.plan is not None and planned.answer.solution is not None
    steps, x = np.zeros(len(graph.operators), dtype=np.int64), planned.answer.solution
    for u in planned.planning.problem.usages:
        steps[u.start : u.end] += u.amount[x[u.vertex]]
    (held,) = held_over_time(graph, load_machine(machine), planned.plan.choices).values()
    assert (held <= steps).all() and int(held.max()) == int(steps.max())


def test_every_assumption_has_a_sentence() -> None:
    table = DOCUMENT.read_text().split("<!-- names: assumptions -->")[1].split("\n\n")[1]
    names = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert set(names) == set(SENTENCES) and all(sentence(n) != n for n in names)
    assert sentence("unsplit-axes(1: a.x)").endswith(": 1: a.x.")


def test_names_write_no_markup(tmp_path: Path) -> None:
    g = Builder("<script>alert(1)</script>")
    y = g.contract("<b>&y", "b k, k n -> b n", g.input("x", (8, 8)), g.parameter("<i>w", (8, 8)))
    plan = shardproof.plan(g.build(y), "localhost:2")
    plan.save(tmp_path / "p.spz")
    assert run(["report", str(tmp_path / "p.spz"), "-o", str(tmp_path / "p.html")]) == 0
    assert "<script>alert(1)</script> on localhost" in "".join(read(tmp_path / "p.html").text)
    assert "<b>&y" in " ".join(read(tmp_path / "p.html").text)


def test_a_strip_shows_every_split() -> None:
    palette = Palette()
    drawn = strip(Placement(("b", "h"), ((2, 1), (1, 4), (1, 2))), (2, 8), palette)
    assert drawn.count("<rect") == 3 and set(palette.colours) == {"b", "h"}
    assert all(f'fill="{c}"' in drawn for c in palette.colours.values()) and "copies on 2" in drawn


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, machine = build("mlp-unity", batch=64), load_machine("localhost:4")
    best = plan_graph(graph, machine)
    (tmp_path / "s.json").write_text(json.dumps({"*": {"b": {"ranks": 2}}}))
    assert best.plan is not None
    (tmp_path / "a.spz").write_bytes(write_plan(None, best.plan))
    (tmp_path / "g.json").write_text(graph.to_json())
    words = ["plan", str(tmp_path / "g.json"), "--machine", "localhost:4", "--strategy", str(tmp_path / "s.json")]
    assert run([*words, "-o", str(tmp_path / "b.spz")]) in (0, 5)
    shardproof.plan("mlp-unity", "localhost:2", batch=64).save(tmp_path / "c.spz")
    capsys.readouterr()
    a, b = str(tmp_path / "a.spz"), str(tmp_path / "b.spz")
    assert run(["diff", a, b, "-o", str(tmp_path / "d.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["difference"] == sum(r["difference"] for r in told["rows"]) >= 0 and told["rows"]
    one, two = (shardproof.load(p) for p in (a, b))
    assert Fraction(told["difference"], best.planning.problem.scale) == two.cost_s - one.cost_s
    assert "Every term in which they differ" in " ".join(read(tmp_path / "d.html").text)
    assert run(["diff", a, a]) == 0
    assert run(["diff", a, str(tmp_path / "c.spz")]) == 3
    assert "different machines" in capsys.readouterr().err


def test_what_cannot_be_printed_is_an_escape(tmp_path: Path) -> None:
    """A name that turns the direction of writing round, or moves a cursor, is seen and does nothing."""
    name = "\u202e\x1b[31mw\u2028"
    g = Builder(name)
    y = g.contract(name + "y", "b k, k n -> b n", g.input("x", (8, 8)), g.parameter(name, (8, 8)))
    shardproof.plan(g.build(y), "localhost:2").save(tmp_path / "p.spz")
    p = str(tmp_path / "p.spz")
    assert run(["report", p, "-o", str(tmp_path / "p.html")]) == 0
    assert run(["diff", p, p, "-o", str(tmp_path / "d.html")]) == 0
    for page in ("p.html", "d.html"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert "\\u202e\\x1b[31mw" in text and not {"\u202e", "\x1b", "\u2028"} & set(text)


def test_the_page_of_a_joint_plan_says_what_is_proved(tmp_path: Path) -> None:
    """Its claim is about all programs of the e-graph: bound and assumptions are the checker's, not the program's own."""
    p = str(tmp_path / "p.spz")
    assert run(["plan", "mlp-unity", "--batch", "64", "--machine", "localhost:4", "--joint", "-o", p]) == 0
    assert run(["report", p, "-o", str(tmp_path / "p.html")]) == 0
    text = " ".join(read(tmp_path / "p.html").text)
    assert "no plan of any program of its e-graph" in text and "nothing finite" not in text
    assert "proved optimal" in text or "proved within" in text
    assert OF_JOINT_PLANS["real-arithmetic"] in text and OF_JOINT_PLANS["graphs: egraph"] in text


def test_narrow_places() -> None:
    """Dominators of the end, found again by leaving each operator out: what lies behind is then reached no more."""
    from shardproof.formal.report.program import blocks

    graph = build("bert-tiny")
    found = blocks(graph)
    assert [b.last for b in found][4:8] == [
        f"layer0.{n}" for n in ("attention.add", "attention.norm", "ffn.add", "ffn.norm")
    ]
    names = [n for b in found for n in b.operators]
    assert len(set(names)) == len(names)
    writer = {op.output.tensor: op.name for op in graph.operators}
    end, first = found[-1].last, found[0].last

    def reached(without: str | None) -> set[str]:
        seen = {first} - {without}
        for op in graph.operators:
            if op.name != without and any(writer.get(a.tensor) in seen for a in op.inputs):
                seen.add(op.name)
        return seen

    narrow = {n for n in reached(None) if end not in reached(n)}
    assert narrow == {b.last for b in found}
    assert all(b.bytes == graph.tensor(graph.operator(b.last).output.tensor).elements * 8 for b in found)
    step = blocks(build_step(graph, "adam", None).graph)
    assert [b.last for b in step][: len(found)] == [b.last for b in found] and step[-1].last == "loss"
