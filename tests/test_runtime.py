"""Fusion, overlap, generated kernels inside programs, traces, and `run` as a whole."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_run import SMALL, choose, draw_choices

from shardproof.__main__ import run as command_line
from shardproof.backends.cuda import Kernel, exchange, group, shim
from shardproof.backends.execution.fused import MemberError, chunks, execute_fused
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.kernels import execute
from shardproof.backends.kernels.library import OURS
from shardproof.backends.lowering.collectives import count, uses
from shardproof.backends.lowering.fusion import fuse
from shardproof.backends.lowering.overlap import overlap, reads, writes
from shardproof.backends.lowering.program import Compute, Finish, Free, Fused, Load, Move, Program, Start, lower
from shardproof.backends.trace import KINDS, Recorder, Span, chrome, read_spans, summary, table, write_spans
from shardproof.backends.transport.patterns import patterns
from shardproof.models.communication.choices import Choices
from shardproof.models.communication.resharding import CommunicationPlan, Reduction
from shardproof.models.communication.transfers import Exchange
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import build


def elementwise(rows: int = 37, columns: int = 53, dtype: str = "float64") -> Graph:
    """A chain with everything in it: matmul, bias, gelu, residual, layer norm with gamma and beta, scale, softmax,
    mask, a second reader.
    """
    g = Builder("chain", dtype)
    x, w = g.input("x", (rows, 8)), g.parameter("w", (8, columns))
    y = g.contract("y", "b k, k n -> b n", x, w)
    biased = g.map("biased", "add", y, g.parameter("bias", (columns,)), text="b n, n -> b n")
    active = g.map("active", "gelu", biased, text="b n -> b n")
    summed = g.map("summed", "add", active, biased, text="b n, b n -> b n")
    normal = g.normalise(
        "normal",
        "layer_norm",
        "b n, n, n -> b n",
        summed,
        g.parameter("gamma", (columns,)),
        g.parameter("beta", (columns,)),
        over=("n",),
        epsilon=1e-3,
    )
    scaled = g.map("scaled", "scale", normal, text="b n -> b n", scale=0.5)
    soft = g.normalise("soft", "softmax", "b n -> b n", scaled, over=("n",))
    kept = g.map("kept", "multiply", soft, g.input("factor", (rows,)), text="b n, b -> b n")
    return g.build(g.contract("z", "b n, n m -> b m", kept, g.parameter("v", (columns, 5))), scaled)


def by_rows(graph: Graph, ranks: int) -> Choices:
    """Every operator that can splits its axis b."""
    split = {op.name: {"b": (ranks,)} for op in graph.operators if any(a.name == "b" for a in op.axes)}
    copies = {f"tensor:{name}": {"0": (ranks,)} for name in ("scaled", "z", "biased")}
    return choose(graph, (ranks,), {**split, **copies})


def fused_in(program: Program) -> list[Fused]:
    return [step for step in program.ranks[0] if isinstance(step, Fused)]


# --- fusion -----------------------------------------------------------------------------------------------------------


def test_what_is_fused() -> None:
    graph = elementwise()
    program = fuse(lower(graph, (4,), by_rows(graph, 4)))
    names = [[graph.operators[m.operator].name for m in step.members] for step in fused_in(program)]
    assert names == [["biased", "active", "summed", "normal", "scaled", "soft", "kept"]]
    (only,) = fused_in(program)
    assert {graph.operators[only.members[k].operator].name for _, k in only.results} == {"kept", "scaled"}
    assert only.reuse is None  # two results: nothing to write them over
    assert not any(
        isinstance(step, Compute) and graph.operators[step.operator].kind.value == "map" for step in program.ranks[0]
    )


def test_splitting_the_reduced_axis_ends_a_chain() -> None:
    """Statistics that cross ranks are communication: softmax and layer norm stay alone, the maps around them fuse."""
    graph = elementwise()
    columns = {op.name: {"n": (4,)} for op in graph.operators if any(a.name == "n" for a in op.axes)}
    copies = {"tensor:biased": {"1": (4,)}, "tensor:scaled": {"1": (4,)}}
    program = fuse(lower(graph, (4,), choose(graph, (4,), {**columns, **copies})))
    names = [[graph.operators[m.operator].name for m in step.members] for step in fused_in(program)]
    assert names == [["biased", "active", "summed"]]
    values = random_inputs(graph, 0)
    for name, expected in run_graph(graph, values).items():
        np.testing.assert_allclose(run_virtual(program, values).outputs[name], expected, rtol=1e-12, atol=1e-12)


def test_a_redistribution_inside_ends_a_chain() -> None:
    graph = elementwise()
    table_ = {op.name: {"b": (4,)} for op in graph.operators if any(a.name == "b" for a in op.axes)}
    program = fuse(
        lower(graph, (4,), choose(graph, (4,), {**table_, "active": {"n": (4,)}, "tensor:biased": {"0": (4,)}}))
    )
    members = [[graph.operators[m.operator].name for m in step.members] for step in fused_in(program)]
    assert all("active" not in names or names == ["active"] for names in members)


@pytest.mark.parametrize("chunk", [1 << 30, 200, 64])
def test_fused_equals_unfused(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardproof.backends.execution import fused

    monkeypatch.setattr(fused, "CHUNK", chunk)
    graph = elementwise()
    values = random_inputs(graph, 3)
    for ranks in (1, 4, 40):  # more ranks than rows: some hold nothing
        plain = lower(graph, (ranks,), by_rows(graph, ranks))
        got = run_virtual(fuse(plain), values)
        expected = run_virtual(plain, values)
        assert got.traffic == expected.traffic
        for name, value in expected.outputs.items():
            np.testing.assert_allclose(got.outputs[name], value, rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SMALL)),
    st.sampled_from([(2, 4), (4,), (2, 2, 2), (3, 2)]),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_both_passes_keep_values_and_traffic(name: str, hierarchy: tuple[int, ...], seed: int, uniform: bool) -> None:
    graph = SMALL[name]()
    first = {op.name: {next(a.name for a in op.axes if a.splittable): hierarchy} for op in graph.operators}
    choices = (
        choose(graph, hierarchy, first) if uniform else draw_choices(graph, hierarchy, np.random.default_rng(seed))
    )
    values = random_inputs(graph, seed)
    plain = lower(graph, hierarchy, choices)
    program = overlap(fuse(plain))
    expected, got = run_virtual(plain, values), run_virtual(program, values)
    assert got.traffic == expected.traffic
    for key, value in expected.outputs.items():
        np.testing.assert_allclose(got.outputs[key], value, rtol=1e-12, atol=1e-12)
    assert count(program) == count(plain)


def test_memory_nobody_else_reads_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """matmul, bias, relu: the result takes the matmul's memory, and inputs keep their values."""
    g = Builder("epilogue", "float64")
    y = g.contract("y", "b k, k n -> b n", g.input("x", (64, 8)), g.parameter("w", (8, 700)))
    z = g.map("z", "relu", g.map("s", "add", y, g.parameter("bias", (700,)), text="b n, n -> b n"), text="b n -> b n")
    graph = g.build(g.contract("t", "b n, n m -> b m", z, g.parameter("v", (700, 3))))
    program = fuse(lower(graph, (1,), choose(graph, (1,), {})))
    (step,) = fused_in(program)
    assert step.reuse == "s[0]"
    monkeypatch.setattr(
        "shardproof.backends.execution.fused.CHUNK", 1 << 14
    )  # more than one chunk: with one, its value is the result
    seen: list[np.ndarray] = []
    operand = np.random.default_rng(0).standard_normal((64, 700))
    slots = {"s[0]": operand, "s[1]": np.zeros(700)}
    before = operand.copy()
    out = execute_fused(np, graph, step, slots, OURS)
    seen.extend(out.values())
    assert seen[0] is operand
    np.testing.assert_array_equal(seen[0], np.maximum(before, 0))
    values = random_inputs(graph, 0)
    kept = {k: v.copy() for k, v in values.items()}
    run_virtual(program, values)
    assert all(np.array_equal(values[k], kept[k]) for k in kept)


def test_a_value_that_is_sent_or_read_twice_is_not_written_over() -> None:
    graph = SMALL["training"]()
    for seed in range(10):
        program = fuse(lower(graph, (2, 2), draw_choices(graph, (2, 2), np.random.default_rng(seed))))
        for at, step in enumerate(program.ranks[0]):
            if isinstance(step, Fused) and step.reuse is not None:
                same = {step.reuse}
                for other in reversed(program.ranks[0][:at]):
                    if isinstance(other, Move) and other.target in same:
                        assert not program.movements[other.movement].plan.steps
                        same.add(other.source)
                users = [
                    s for s in program.ranks[0] if reads(s) & same and not isinstance(s, (Free, Move)) and s is not step
                ]
                assert not users
                assert not [
                    s
                    for s in program.ranks[0]
                    if isinstance(s, Move) and s.source in same and program.movements[s.movement].plan.steps
                ]


def test_chunks_cover_the_box_once() -> None:
    for whole, fixed in (
        (((0, 37), (5, 58)), set()),
        (((0, 37), (5, 58)), {1}),
        (((2, 3), (0, 100), (0, 9)), {1}),
        ((), set()),
        (((0, 0), (0, 4)), set()),
    ):
        seen = np.zeros([hi - lo for lo, hi in whole], dtype=int)
        for part in chunks(whole, fixed, 64):
            seen[tuple(slice(lo - a, hi - a) for (lo, hi), (a, _) in zip(part, whole))] += 1
            assert all(part[k] == whole[k] for k in fixed)
        assert (seen == 1).all()


def test_an_error_inside_a_chain_names_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardproof.backends.execution import interpreter

    def broken(xp, op, *rest):
        if op.name == "active":
            raise ValueError("out of luck")
        return execute(xp, op, *rest)

    monkeypatch.setattr(interpreter, "library_of", lambda name: replace(OURS, execute=broken))
    graph = elementwise()
    with pytest.raises(RankError, match=r"operator 'active', which writes tensor 'active': ValueError: out of luck"):
        run_virtual(fuse(lower(graph, (2,), by_rows(graph, 2))), random_inputs(graph, 0))
    assert issubclass(MemberError, RuntimeError)


# --- generated kernels inside programs --------------------------------------------------------------------------------


class Launcher:
    """Launches on the host shim.  First only collects kernels, so that all are compiled at once; remembers what ran."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.module: shim.HostModule | None = None

    def compile(self) -> None:
        self.module = shim.HostModule(self.kernels)
        self.kernels = []

    def __call__(self, kernel: Kernel, arrays) -> None:
        self.kernels.append(kernel)
        if self.module is not None:
            self.module.launch(kernel, list(arrays))


class Aligned:
    """NumPy with results that start at a multiple of 16 bytes, as CuPy's do."""

    def __getattr__(self, name: str):
        return getattr(np, name)

    @staticmethod
    def empty(shape, dtype="float64"):
        return shim.empty(shape, str(np.dtype(dtype)))


@pytest.mark.skipif(not shim.available(), reason="no g++ on the PATH")
@pytest.mark.parametrize(("dtype", "columns"), [("float64", 53), ("float32", 56)])
def test_fused_steps_through_generated_kernels(dtype: str, columns: int) -> None:
    """What a GPU would run, launch by launch: a chain kernel, then a row kernel with epilogue."""
    graph = elementwise(37, columns, dtype)
    values = {k: v.astype(dtype) for k, v in random_inputs(graph, 1, dtype).items()}
    program = lower(graph, (1,), by_rows(graph, 1))
    keep = ["y", "biased", "active", "summed", "normal", "scaled", "soft", "kept"]
    expected = run_graph(graph, values, keep=keep)

    def aligned(array: np.ndarray) -> np.ndarray:
        out = shim.empty(array.shape, str(array.dtype))
        out[...] = array
        return out

    launcher, steps = Launcher(), list[tuple[Fused, dict[str, np.ndarray], list[str]]]()
    cases = {
        ("biased", "active", "summed"): ["summed"],
        ("normal", "scaled"): ["normal", "scaled"],
        ("soft", "kept"): ["kept"],
        ("summed", "normal", "scaled"): ["summed", "scaled"],
        ("scaled", "soft"): ["soft"],
    }
    by_name = {graph.operators[s.operator].name: s for s in program.ranks[0] if isinstance(s, Compute)}
    for names, wanted in cases.items():
        members = tuple(by_name[n] for n in names)
        slots, links = {}, []
        for m in members:
            op = graph.operators[m.operator]
            for (slot, _), a in zip(m.operands, op.inputs):
                if a.tensor in names:
                    links.append((slot, names.index(a.tensor)))
                else:
                    slots[slot] = aligned(expected[a.tensor] if a.tensor in expected else values[a.tensor])
        step = Fused(members, tuple(links), tuple((n, names.index(n)) for n in wanted))
        steps.append((step, slots, wanted))
        execute_fused(Aligned(), graph, step, slots, OURS, launcher)
    launcher.compile()
    for step, slots, wanted in steps:
        out = execute_fused(Aligned(), graph, step, slots, OURS, launcher)
        for n in wanted:
            np.testing.assert_allclose(
                out[n],
                expected[n],
                rtol=2e-6 if dtype == "float32" else 1e-12,
                atol=1e-6 if dtype == "float32" else 1e-12,
            )
    kinds = [k.name.partition("_")[0] for k in launcher.kernels]
    assert kinds == ["chain", "layer", "softmax", "chain", "layer", "chain", "softmax"]


@pytest.mark.skipif(not shim.available(), reason="no g++ on the PATH")
def test_exchanges_through_pack_and_unpack_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halos of a convolution, packed and unpacked by generated kernels on every rank: the same tensors arrive."""
    from shardproof.backends.execution import steps

    graph = build("conv-stack", batch=2, size=16, channels=4, dtype="float64")
    program = lower(
        graph,
        (4,),
        choose(graph, (4,), {op.name: {"y": (4,)} for op in graph.operators if any(a.name == "y" for a in op.axes)}),
    )
    values = random_inputs(graph, 0)
    expected = run_virtual(program, values)
    launcher = Launcher()
    for movement in program.movements:
        for step in movement.plan.steps:
            if isinstance(step, Exchange):
                _collect_kernels(launcher, movement.plan, step)
    launcher.compile()
    monkeypatch.setattr(steps, "launcher", lambda xp: launcher)
    got = run_virtual(program, values)
    assert got.traffic == expected.traffic
    assert {k.name.partition("_")[0] for k in launcher.kernels} == {"pack", "unpack"}
    for name, value in expected.outputs.items():
        np.testing.assert_array_equal(got.outputs[name], value)


def _collect_kernels(launcher: Launcher, plan: CommunicationPlan, step: Exchange) -> None:
    """Every kernel of every rank: one per partner and direction."""
    for pattern in patterns(step):
        for rank in pattern.group:
            for layout, mine, other, move in (
                (plan.source, "source", "target", exchange.pack),
                (plan.target, "target", "source", exchange.unpack),
            ):
                block = layout.box(rank)
                array = np.zeros([hi - lo for lo, hi in block])
                partners: dict[int, list] = {}
                for t in pattern.transfers:
                    if getattr(t, mine) == rank:
                        partners.setdefault(getattr(t, other), []).append(
                            tuple((lo - low, hi - low) for (lo, hi), (low, _) in zip(t.box, block))
                        )
                for boxes in partners.values():
                    if move is exchange.pack:
                        exchange.pack(np, launcher, array, boxes)
                    else:
                        exchange.unpack(
                            np,
                            launcher,
                            np.zeros(sum(int(np.prod([hi - lo for lo, hi in b])) for b in boxes)),
                            array,
                            boxes,
                        )


def test_what_has_no_text_is_computed_by_the_library() -> None:
    """Statistics over the first axis: no row kernel, so no launch, and the same values."""
    g = Builder("columns", "float64")
    x = g.input("x", (6, 5))
    graph = g.build(g.map("z", "relu", g.normalise("p", "softmax", "b n -> b n", x, over=("b",)), text="b n -> b n"))
    program = fuse(lower(graph, (1,), choose(graph, (1,), {})))
    (step,) = fused_in(program)
    values = random_inputs(graph, 0)

    def never(kernel: Kernel, arrays) -> None:
        raise AssertionError("no kernel should be launched")

    out = execute_fused(np, graph, step, {"p[0]": values["x"]}, OURS, never)
    np.testing.assert_allclose(next(iter(out.values())), run_graph(graph, values)["z"], rtol=1e-12)
    assert group.launches.__doc__ is not None


# --- overlap ----------------------------------------------------------------------------------------------------------


@cache
def two_branches() -> tuple[Graph, Choices]:
    """Two independent layers whose sums cross ranks: one all-reduce can run beside the other layer."""
    g = Builder("branches", "float64")
    outs = []
    for n in "ab":
        y = g.contract(f"{n}", "b k, k n -> b n", g.input(f"{n}.x", (16, 24)), g.parameter(f"{n}.w", (24, 12)))
        outs.append(g.map(f"{n}.relu", "relu", y, text="b n -> b n"))
    graph = g.build(g.map("sum", "add", *outs, text="b n, b n -> b n"))
    return graph, choose(graph, (4,), {"a": {"k": (4,)}, "b": {"k": (4,)}})


def test_independent_work_stands_between_start_and_finish() -> None:
    graph, choices = two_branches()
    plain = lower(graph, (4,), choices)
    program = overlap(plain)
    steps = program.ranks[0]
    start = next(i for i, s in enumerate(steps) if isinstance(s, Start))
    finish = next(i for i, s in enumerate(steps) if isinstance(s, Finish) and s.movement == steps[start].movement)
    assert any(isinstance(s, Compute) for s in steps[start:finish])
    assert sum(isinstance(s, Start) for s in steps) == sum(isinstance(s, Finish) for s in steps) > 0


def test_no_value_is_read_before_it_is_there_or_after_it_is_gone() -> None:
    for name, make in SMALL.items():
        graph = make()
        for seed in range(4):
            program = overlap(fuse(lower(graph, (2, 2), draw_choices(graph, (2, 2), np.random.default_rng(seed)))))
            alive: set[str] = set()
            started: set[int] = set()
            for step in program.ranks[0]:
                assert (
                    reads(step)
                    - {
                        s
                        for m in (step.members if isinstance(step, Fused) else ())
                        for s, _ in m.operands
                        if s in dict(step.links)
                    }
                    <= alive
                ), (name, step)
                if isinstance(step, Start):
                    started.add(step.movement)
                if isinstance(step, Finish):
                    started.remove(step.movement)
                if isinstance(step, Free):
                    alive.discard(step.slot)
                alive |= writes(step)
            assert not started
            kinds = {tuple(type(s) for s in rank) for rank in program.ranks}
            assert len(kinds) == 1  # every rank starts and finishes the same things in the same order


# --- what is reported -------------------------------------------------------------------------------------------------


def test_collectives_of_a_perceptron() -> None:
    graph = SMALL["mlp"]()
    program = lower(
        graph,
        (2, 4),
        choose(
            graph,
            (2, 4),
            {
                "fc1": {"n": (1, 4), "b": (2, 1)},
                "relu1": {"n": (1, 4), "b": (2, 1)},
                "fc2": {"k": (1, 4), "b": (2, 1)},
                "tensor:fc2": {"0": (2, 1)},
            },
        ),
    )
    assert count(program) == {"all-reduce": 1}
    (only,) = uses(program)
    assert (only.groups, only.members, only.calls) == (2, 4, 1)
    assert "fc2" in only.place
    assert only.reason
    crossing = lower(graph, (2, 4), choose(graph, (2, 4), {"fc1": {"k": (2, 4)}}))
    assert count(crossing) == {"all-gather": 2, "reduce-scatter": 2}
    assert count(overlap(fuse(crossing))) == {"all-gather": 2, "reduce-scatter": 2}


def test_collectives_of_a_convolution_are_halos() -> None:
    graph = build("conv-stack", batch=2, size=16, channels=4, dtype="float64")
    rows = {op.name: {"y": (4,)} for op in graph.operators if any(a.name == "y" for a in op.axes)}
    found = uses(lower(graph, (4,), choose(graph, (4,), rows)))
    halos = [u for u in found if u.kind == "neighbours"]
    assert halos
    assert all("partners" in u.reason for u in halos)


def test_no_element_takes_a_detour_inside_one_level() -> None:
    """Groups of one sender or one receiver occur, but what they send is theirs: on a flat machine nobody passes
    anything on.
    """
    for name, make in SMALL.items():
        graph = make()
        for seed in range(3):
            program = lower(graph, (4,), draw_choices(graph, (4,), np.random.default_rng(seed)))
            for movement in program.movements:
                have = next(
                    (s.tiles for s in movement.plan.steps if isinstance(s, Reduction)),
                    [movement.plan.source.box(r) for r in range(4)],
                )
                for step in movement.plan.steps:
                    for t in step.transfers if isinstance(step, Exchange) else ():
                        assert all(lo <= a and b <= hi for (a, b), (lo, hi) in zip(t.box, have[t.source])), (
                            name,
                            movement.tensor,
                        )


def test_summary_and_table() -> None:
    spans = [
        Span(0, "y", "compute", 0.0, 3.0),
        Span(1, "y", "compute", 0.0, 1.0),
        Span(0, "m", "flight", 1.0, 5.0),
        Span(0, "m", "communication", 3.0, 5.0),
        Span(1, "n", "communication", 1.0, 3.0),
        Span(1, "x", "data", 0.0, 9.0),
    ]
    found = summary(spans, 2)
    assert (found.compute_s, found.wait_s, found.flight_s) == (4.0, 4.0, 6.0)
    assert found.overlap == pytest.approx(1 / 3)
    assert [(r.name, r.slowest_s, r.mean_s) for r in found.rows if r.kind == "compute"] == [("y", 3.0, 2.0)]
    assert "33% of 3000.000 ms in flight ran beside computation" in table(found, 2)[-1]
    assert summary([], 2).overlap is None
    assert "nothing communicated" in table(summary([], 2), 2)[-1]


def check_chrome(document: dict, ranks: int) -> None:
    """The Trace Event Format: what Perfetto and chrome://tracing need to load a file."""
    assert set(document) == {"traceEvents", "displayTimeUnit"}
    opened: dict[tuple, list[float]] = {}
    spans: dict[int, list[tuple[float, float]]] = {}
    for e in document["traceEvents"]:
        assert isinstance(e["name"], str) and isinstance(e["pid"], int) and isinstance(e["tid"], int)
        match e["ph"]:
            case "M":
                assert e["name"] in ("process_name", "thread_name") and isinstance(e["args"]["name"], str)
            case "X":
                assert e["ts"] >= 0 and e["dur"] >= 0 and e["cat"] in KINDS
                spans.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
            case "b":
                opened.setdefault((e["cat"], e["id"], e["tid"]), []).append(e["ts"])
            case "e":
                assert e["ts"] >= opened[e["cat"], e["id"], e["tid"]].pop()
            case other:
                raise AssertionError(other)
    assert not any(opened.values())
    assert set(spans) == set(range(ranks))
    for found in spans.values():  # complete events of one line must not cross
        for (_, end), (start, _) in pairwise(sorted(found)):
            assert start >= end - 0.002


def test_a_virtual_run_is_traced(tmp_path: Path) -> None:
    graph, choices = two_branches()
    program = build_program(graph, (4,), choices, Options())
    result = run_virtual(program, random_inputs(graph, 0), trace=True)
    assert {s.kind for s in result.spans} == set(KINDS)
    document = json.loads(json.dumps(chrome(result.spans, "branches")))
    check_chrome(document, 4)
    path = tmp_path / "0.json"
    write_spans(path, result.spans)
    assert tuple(read_spans(path)) == result.spans
    found = summary(result.spans, 4)
    assert found.overlap is not None and 0 <= found.overlap <= 1
    recorder = Recorder(0)
    recorder.add("a", "compute", recorder.now())
    assert recorder.spans[0].seconds >= 0


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.spz"
    assert command_line(["plan", "bert-tiny", "--batch", "2", "--machine", "localhost:4", "-o", str(path)]) == 0
    return path


def test_run_prints_times_and_writes_a_trace(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    assert command_line(["run", str(plan), "-n", "4", "--virtual", "--trace", str(trace)]) == 0
    said = capsys.readouterr().out
    assert "collectives per rank: " in said
    assert "ms computing" in said
    check_chrome(json.loads(trace.read_text()), 4)
    assert command_line(["run", str(plan), "-n", "4", "--virtual", "--no-overlap", "--no-fuse", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["equal"] and document["overlap"] in (0.0, None)
    assert {"collectives", "operators", "compute_seconds", "wait_seconds"} <= set(document)
    assert len(document["operators"]) > 10
    assert all(
        isinstance(s, (Load, Compute, Free, Move))
        for s in build_program(*_of(plan), Options(fuse=False, overlap=False)).ranks[0]
    )


def _of(path: Path) -> tuple[Graph, tuple[int, ...], Choices]:
    from shardproof.proofs.plan.bundle import read_plan

    found, _ = read_plan(path.read_bytes())
    return found.graph, found.machine.hierarchy, found.choices
