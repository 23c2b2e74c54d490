"""`machine calibrate --from`: constants are found again from files made with them, bars cover, what no row separates is
refused by name, and bad files get errors that name the line.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from loop_cases import powers

from shardproof.__main__ import run
from shardproof.formal.calibration.files import chrome, nccl_tests, tables
from shardproof.formal.calibration.files.fitting import calibrate_files
from shardproof.formal.calibration.files.observation import Collective, Observation, Product, Touched, terms
from shardproof.formal.calibration.files.reading import one_machine, read, select_rows
from shardproof.formal.plans.linear import Forms, moved_name, values
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost.collective_times import Operation
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.plan.bundle import write_plan

DATA = Path(__file__).parent / "data" / "measured"
TRUE = load_machine("dgx-h100:4x8")
START = load_machine("dgx-a100:4x8")


def seconds(machine: Machine, seen: Observation) -> float:
    """What a machine predicts, by this file's own sum."""
    at = {p: float(v) for p, v in values(machine).items()}
    form = terms(seen, machine)
    return sum(max(at[p] * x for p, x in step) for step in form.steps) + sum(at[p] * x for p, x in form.added)


def nccl_text(hosts: tuple[str, ...], operation: Operation, sizes: list[int], noise: float = 0.0) -> str:
    """Output of nccl-tests as the machine `TRUE` would have it."""
    rng, n = random.Random(3), len(hosts)
    lines = [f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor)", "#", "# Using devices"]
    lines += [
        f"#  Rank {i:2} Group  0 Pid {100 + i} on {h:>10} device {i} [0x07] NVIDIA H100" for i, h in enumerate(hosts)
    ]
    lines += ["#       size         count      type   redop    root     time   algbw   busbw #wrong     time"]
    nodes = len(set(hosts))
    factor = 2 * (n - 1) / n if operation is Operation.ALL_REDUCE else (n - 1) / n
    redop = "sum" if operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER) else "none"
    for size in sizes:
        time = 1e6 * seconds(TRUE, Observation(Collective(operation, n, nodes, size), 1.0, ""))
        time *= 1 + noise * rng.uniform(-1, 1)
        algorithm = size / time / 1e3
        block = f"{time:.4f} {algorithm:.4f} {algorithm * factor:.4f} 0"
        lines.append(f"{size:>12} {size // 4:>12} float {redop} -1 {block} {block}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


SIZES = [1 << b for b in range(10, 31, 2)]
ONE = ("a",) * 8
TWO = tuple(h for h in "abcd" for _ in range(8))


def test_nccl_tests_output_gives_the_links_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs in one file, inside a node and across nodes, whose operation only the bandwidths tell."""
    file, out = tmp_path / "run.txt.gz", tmp_path / "mine.toml"
    text = nccl_text(ONE, Operation.ALL_REDUCE, SIZES) + nccl_text(TWO, Operation.ALL_REDUCE, SIZES, 0.02)
    file.write_bytes(gzip.compress(text.encode()))
    assert run(["machine", "calibrate", "dgx-a100", "--from", str(file), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = load_machine(str(out))
    for mine, true in zip(found.levels, TRUE.levels, strict=True):
        assert abs(mine.bandwidth / true.bandwidth - 1) < Fraction(1, 20)
        assert abs(mine.latency / true.latency - 1) < Fraction(1, 10)
    assert found.device == START.device and not found.levels[1].collectives  # they would be priced with instead
    assert said["residuals"]["fitted"]["mean_error"] < 0.02
    assert said["constants"]["level.nodes.bandwidth"]["bar"] is not None
    assert "no row depends" in said["constants"]["device_class.a100.launch"]["kept"]
    links = {f"level.{x.name}.{k}" for x in found.levels for k in ("bandwidth", "latency")}
    assert {p for p, _ in found.bars if p.startswith("level.")} == links
    assert run(["machine", "show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "level.nodes.bandwidth (within " in shown and "run.txt.gz" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("sum", "none"), "does not name its operation"),
        (lambda t: t.replace("# nThread", "# all_gather_perf\n# nThread"), ""),
        (lambda t: t.replace("# nThread", "# broadcast_perf\n# nThread"), "line 1: broadcast_perf is none"),
        (lambda t: t.replace(" float sum -1 ", " float sum -1 x "), "line 13: "),
        (lambda t: "\n".join(x for x in t.splitlines() if "Rank" not in x).replace("nGpus 1", "nGpus 8"), ""),
        (lambda t: "\n".join(x for x in t.splitlines() if "Rank" not in x), "how many ranks"),
        (lambda t: t.replace("on          a device 3", "on          b device 3"), "different numbers of ranks"),
        (lambda t: "\n".join(x for x in t.splitlines() if x.startswith("#")), "without a row of times"),
    ],
)
def test_outputs_of_nccl_tests_that_say_too_little(change, message: str) -> None:  # type: ignore[no-untyped-def]
    text = change(nccl_text(ONE, Operation.ALL_REDUCE, SIZES))
    if not message:
        assert len(nccl_tests.read(text, "f")) == len(SIZES)
        return
    with pytest.raises(InputError, match=message):
        nccl_tests.read(text, "f")


def test_what_no_row_separates_is_refused_by_name() -> None:
    """One size: start-up and bandwidth of a link are one number; kept, the other is found."""
    rows = nccl_tests.read(nccl_text(ONE, Operation.ALL_REDUCE, [1 << 20]), "f")
    with pytest.raises(InputError) as refused:
        calibrate_files(START, rows, (), (), "f")
    text = str(refused.value)
    assert "level.gpus.bandwidth" in text and "level.gpus.latency" in text and "no row separates them" in text
    assert "all_gather_perf" in text or "all_reduce_perf" in text
    known = replace(START, levels=(START.levels[0], replace(START.levels[1], latency=TRUE.levels[1].latency)))
    kept = calibrate_files(known, rows, (), ("level.gpus.latency",), "f")
    assert kept.machine.levels[1].latency == TRUE.levels[1].latency and kept.fitted.worst < 1e-3
    by_size = [replace(r, seconds=2 * r.seconds) for r in nccl_tests.read(nccl_text(TWO, Operation.ALL_GATHER, SIZES), "f", Operation.ALL_GATHER)]  # fmt: skip
    with pytest.raises(InputError, match=r"level\.\w+\.\w+ and level\.\w+\.\w+.* cannot be told apart"):
        calibrate_files(START, by_size, (), (), "f")  # 32 ranks only: inside and outside always go together


def test_bars_cover_what_the_rows_scatter() -> None:
    """Times off by up to a quarter: of ten true constants nine lie within the bars that are said."""
    covered = []
    for seed in range(10):
        rng = random.Random(seed)
        rows = [
            Observation(w, 1.0, "")
            for n in (256, 1024, 4096, 8192)
            for w in (Product(n, n, n, "bfloat16"), Touched(n * n), Product(1, n, n, "bfloat16"), Touched(n))
        ]
        rows = [replace(r, seconds=seconds(TRUE, r) * rng.uniform(0.8, 1.25)) for r in rows]
        found = calibrate_files(START, rows, (), (), "f").machine
        true, mine = {p.replace(".h100.", ".a100."): v for p, v in values(TRUE).items()}, values(found)
        bars = {f"device_class.a100.{key}" for key in ("bandwidth", "launch", "peaks.bfloat16")}
        covered += [1 / (1 + bar) <= mine[path] / true[path] <= 1 + bar for path, bar in found.bars if path in bars]
    assert len(covered) == 30 and sum(covered) >= 27


def torch_trace() -> dict[str, object]:
    """A trace of PyTorch's profiler as the machine `TRUE` would have it: a collective twice, once waiting."""
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name"}]

    def kernel(us: float, **args: object) -> None:
        events.append({"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": us, "args": args})

    def operator(name: str, number: int, what: Product | Touched, dims: list[list[int]]) -> None:
        args = {"External id": number, "Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": 1, "dur": 5, "args": args})
        kernel(1e6 * seconds(TRUE, Observation(what, 1.0, "")), **{"External id": number})

    for b in range(10, 30, 2):
        for ranks in (8, 32):
            us = 1e6 * seconds(TRUE, Observation(Collective(Operation.ALL_GATHER, ranks, ranks // 8, 2 << b), 1.0, ""))
            said = {"Collective name": "_allgather_base", "Out msg nelems": 1 << b, "In msg nelems": (1 << b) // ranks}
            said |= {"Group size": ranks, "dtype": "BFloat16", "Process Group Ranks": str(list(range(ranks)))}
            kernel(us, **said)
            kernel(3 * us, **said)
    for number, n in enumerate((64, 512, 4096, 8192)):
        operator("aten::mm", 10 + number, Product(n, n, n, "bfloat16"), [[n, n], [n, n]])
        operator("aten::add", 20 + number, Touched(6 * n * n), [[n, n], [n, n]])
        operator("aten::_softmax", 30 + number, Touched(9), [[n, n]])
    return {"traceEvents": events}


def test_a_trace_of_pytorch_gives_links_and_device_back(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(torch_trace()))
    rows, _ = read(file, START)
    kinds = sorted(type(r.what).__name__ for r in rows)
    assert kinds == ["Collective"] * 20 + ["Product"] * 4 + ["Touched"] * 4
    found = calibrate_files(START, rows, (), (), "trace.json")
    mine, true = values(found.machine), {p.replace(".h100.", ".a100."): v for p, v in values(TRUE).items()}
    for path in ("level.gpus.bandwidth", "level.nodes.bandwidth", "device_class.a100.bandwidth", "device_class.a100.launch"):  # fmt: skip
        assert abs(mine[path] / true[path] - 1) < 0.03, path
    assert abs(mine["device_class.a100.peaks.bfloat16"] / true["device_class.a100.peaks.bfloat16"] - 1) < 0.03
    with pytest.raises(InputError, match="record_shapes"):
        chrome.read({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "dur": 3}]}, "f", 8)
    with pytest.raises(InputError, match="traceEvents 0: dur is no number"):
        chrome.events_of({"traceEvents": [{"ph": "X", "dur": "3"}]}, "f")


def test_our_own_trace_is_read_with_its_plan(tmp_path: Path) -> None:
    """Spans named as a run names them, as long as another machine would take: its constants are found."""
    graph = build_step(build("mlp-unity"), "sgd", None).graph
    start = load_machine("cloud-a100:2x2")
    planned = plan_graph(graph, start)
    assert planned.plan is not None
    write_plan(tmp_path / "plan.spz", planned.plan)
    true = replace(
        start,
        levels=tuple(replace(x, bandwidth=x.bandwidth / 3, latency=x.latency * 2) for x in start.levels),
        device=replace(start.device, bandwidth=start.device.bandwidth / 2),
    )
    events = []
    forms = Forms(graph, true)
    for name, found in forms.of_plan(planned.plan.choices, planned.plan.communication).items():
        kind = "communication" if " -> " in name else "compute"
        tensor, _, reader = name.partition(" -> ")
        to = "its copy" if reader == "its copy" else f"operator {reader!r}"
        words = f"resharding of tensor {tensor!r} to {to}" if reader else f"operator {name!r}, which writes tensor 'x'"
        for form in found:
            for rank in range(4):
                us = float(form.at(values(true))) * 1e6
                late = us * (1 + rank) if kind == "communication" else us / (1 + rank)
                events.append(
                    {"name": words, "cat": kind, "ph": "X", "ts": 0, "dur": late, "pid": 0, "tid": rank, "args": {}}
                )
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    rows, _ = read(file, start, None, tmp_path / "plan.spz")
    again = calibrate_files(start, rows, (), tuple(p for p in values(start) if "latency" in p or "launch" in p), "f")
    assert again.fitted.mean < 0.05 < again.before.mean
    with pytest.raises(InputError, match="--plan"):
        read(file, start)
    with pytest.raises(InputError, match="is for 2x2 devices"):
        read(file, load_machine("cloud-a100:4x8"), None, tmp_path / "plan.spz")


@pytest.mark.parametrize("space", ["complete", "one-per-level"])
def test_forms_of_a_plan_add_up_to_its_cost(space: str) -> None:
    """Every operator and resharding as a function of the constants: at the machine's own they give the cost."""
    from shardproof.models.layout.placement import space as space_of

    layers = build_step(build("mlp-unity"), "sgd", None).graph, build("transformer-layer")
    for graph in (*layers, powers(turns=20, batch=8, width=512)):
        machine = load_machine("cloud-a100:2x2")
        planned = plan_graph(graph, machine, space_of(space))
        assert planned.plan is not None and planned.answer.cost is not None
        at = values(machine)
        found = Forms(graph, machine).of_plan(planned.plan.choices, planned.plan.communication)
        exact = sum((f.at(at) for forms in found.values() for f in forms), Fraction(0))
        problem = planned.planning.problem
        units = planned.answer.cost - exact * problem.scale
        assert 0 <= units <= len(problem.vertices) + len(problem.edges)
        assert moved_name("x", None) == "x -> its copy"


def test_tables_of_the_public_measurements() -> None:
    """Rows of three kinds are read; rows of several machines are not thrown together."""
    start = load_machine("dgx-h100")
    rows, _ = read(DATA / "nccl" / "one_machine.csv", start)
    one_machine(rows)
    found = calibrate_files(start, rows, (), (), "one_machine.csv")
    assert found.fitted.mean < found.before.mean and found.fitted.mean < 0.35
    with pytest.raises(InputError, match="give --operation NAME"):
        read(DATA / "vtrain" / "all_reduce.csv", start)
    rows, _ = read(DATA / "vtrain" / "all_reduce.csv", start, Operation.ALL_REDUCE)
    assert calibrate_files(start, select_rows(rows, {"gpu": "A100"}), (), (), "f").fitted.mean < 0.1
    rows, _ = read(DATA / "gemm" / "sample.csv", start)
    assert calibrate_files(start, rows, (), (), "f").fitted.mean < 0.2
    mixed = [replace(r, columns=(("gpu", name),)) for r, name in zip(rows, ("b", "a"), strict=False)]
    with pytest.raises(InputError, match="several machines: gpu is a, b; choose one with --where gpu=a"):
        one_machine(mixed)


def test_tables_of_steps_are_fitted_by_their_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "vtrain" / "single.csv"
    assert run(["machine", "calibrate", "dgx-a100-40:1x8", "--from", str(file), "-o", str(tmp_path / "m.toml")]) == 0
    said = capsys.readouterr().out
    assert "step.host" in said and "after, fitted rows" in said
    assert load_machine(str(tmp_path / "m.toml")).bars


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("operation,ranks,bytes,us\nall_gather,8,x,3\n", "line 2, bytes: 'x' is not a whole number"),
        ("operation,ranks,bytes,us\nall_gather,8,8\n", "line 2: has more or fewer fields"),
        ("operation,ranks,bytes\nall_gather,8,8\n", "none of them is a time"),
        ("operation,ranks,bytes,us\nall_gatherer,8,8,3\n", "'all_gatherer' is no collective"),
        ("operation,ranks,bytes,us\nall_gather,1,8,3\n", "none of its 1 rows"),
        ("m,n,k,dtype,ms\n8,8,8,complex,1\n", "dtype: 'complex' is none of"),
        ("m,n,k,dtype,b,ms\n8,8,8,bf16,2,1\n", "line 2, b: '2' products at once; choose those of one: --where b=1"),
        ("operation,ranks,bytes,us,nodes\nall_gather,9,8,3,2\n", "9 ranks on 2 nodes"),
        ("a,b,ms\n1,2,3\n", "which are no table of collectives"),
    ],
)
def test_bad_tables_name_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tables.observations(tables.csv_lines(text, "f"), "f", None, 8)


def test_conditions_are_asked_before_a_line_is_read(tmp_path: Path) -> None:
    """Lines that nobody wants may hold what we cannot read."""
    table = tmp_path / "t.csv"
    table.write_text("m,n,k,dtype,b,us\n512,512,512,bf16,1,9\n64,64,64,nf4,1,3\n64,64,64,bf16,8,3\n8,8,8,tf32,1,3\n")
    machine = load_machine("dgx-h100")
    for conditions in ({}, {"dtype": "bf16"}, {"b": "1"}):
        with pytest.raises(InputError, match="nf4|products at once"):
            read(table, machine, None, None, conditions)
    found, skipped = read(table, machine, None, None, {"dtype": "bf16", "b": "1"})
    assert [(o.what, o.place, skipped) for o in found] == [(Product(512, 512, 512, "bfloat16"), f"{table}, line 2", 0)]
    with pytest.raises(InputError, match="no row has dtype=fp32"):
        read(table, machine, None, None, {"dtype": "fp32"})


def test_json_tables() -> None:
    rows = [{"operation": "all_reduce", "ranks": 8, "bytes": n, "us": 10 + n / 1e5} for n in (8, 10**6, 10**8)]
    for data in (rows, {"rows": rows}, {"columns": list(rows[0]), "rows": [list(r.values()) for r in rows]}):
        found = tables.observations(tables.json_lines(data, "f"), "f", None, 8)
        assert [o.what for o in found.rows] == [Collective(Operation.ALL_REDUCE, 8, 1, int(r["bytes"])) for r in rows]
    with pytest.raises(InputError, match="holds no table"):
        tables.json_lines({"x": 1}, "f")
    with pytest.raises(InputError, match="row 0: is no object"):
        tables.json_lines([3], "f")
