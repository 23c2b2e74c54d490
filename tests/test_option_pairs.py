"""All pairs of options of all verbs: honoured or refused, none dropped."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from option_pairs import Recorded, Start, Tried, command, commands, once, options_of, recorded, table_of

import shardproof
import shardproof.api
from shardproof.__main__ import run
from shardproof.backends.execution.feed import Feed, fed
from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.verbs.run import write_arrays
from shardproof.front_door import FrontDoor
from shardproof.models.sources.load import load_model
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.overlap.file import decode_overlap
from shardproof.proofs.pipelines.file import decode_pipeline
from shardproof.proofs.plan.bundle import read_plan
from shardproof.proofs.rewrites.judgement import Undecided
from shardproof.proofs.rewrites.library import Library, read_library, write_library

from .test_schedule_overlap import document

MODEL = "llama:layers=2,sequence=16,width=32,heads=4,kv_heads=2,hidden=64,vocabulary=64,dtype=float32"
PLAIN = "mlp-8192:layers=3,width=64"
LINE = (MODEL, "--machine", "localhost:2", "-o", "p.spz")

KEPT = Path(__file__).parent / "conformance" / "proved"

PLAN: Mapping[str, tuple[str, ...]] = {
    "train": ("--train", "adam"),
    "loss": ("--loss", "squared-error"),
    "recompute": ("--recompute", "all"),
    "batch": ("--batch", "8"),
    "precision": ("--precision", "bf16-mixed"),
    "micro_batch": ("--micro-batch", "2"),
    "attention": ("--attention", "operator"),
    "memory": ("--memory", "1GiB"),
    "collectives": ("--collectives", "synthesised"),
    "offload": ("--offload", "25GB/s"),
    "space_name": ("--space", "two-per-level"),
    "vocabulary": ("--vocabulary", "dtensor"),
    "engine": ("--engine", "ilp"),
    "effort": ("--effort", "quick"),
    "time_limit": ("--time-limit", "50"),
    "work_limit": ("--work-limit", "40M"),
    "gap": ("--gap", "7%"),
    "threads": ("--threads", "1"),
    "strategy": ("--strategy", "strategy.json"),
    "stages": ("--pipeline", "2:2"),
    "interleave": ("--interleave", "2"),
    "without": ("--without", "tensor"),
    "overlap": ("--overlap",),
    "views": ("--views",),
    "joint": ("--joint",),
    "best": ("--best",),
    "rules": ("--rules", str(KEPT / "rules-proved.spz")),
    "rewrite_rounds": ("--rewrite-rounds", "3"),
    "rewrite_nodes": ("--rewrite-nodes", "70"),
    "rewrite_time": ("--rewrite-time", "7"),
    "settings": ("--set", "network.sweeps=9"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("strategy.json").write_text(json.dumps({"*.wq": {"n": {"ranks": 2}}}))
    Path("settings.json").write_text(json.dumps({"train_batch_size": 32, "zero_optimization": {"stage": 1}}))
    return tmp_path


def load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read every model of the command line once."""
    from shardproof.models.sources import compared

    load = cache(compared.load_model)
    monkeypatch.setattr(
        compared, "load_model", lambda spec, batch, _, attention, *__: load(spec, batch, None, attention)
    )


@pytest.fixture
def planners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planners that say what they were asked."""
    import shardproof.formal.verbs.plan as verb
    from shardproof.formal.plans import request as planning
    from shardproof.formal.plans.pipelines import request as pipelines
    from shardproof.formal.plans.submeshes import request as views
    from shardproof.formal.rewriting.joint import request as joint
    from shardproof.formal.verbs import pipelined

    load_once(monkeypatch)
    book = once(FrontDoor.book, 0)
    monkeypatch.setattr(FrontDoor, "book", lambda door, path: book(door, path))
    monkeypatch.setattr(verb, "load_machine", once(verb.load_machine))
    for module in (joint, views):
        monkeypatch.setattr(module, "fitting_space", once(module.fitting_space))
    monkeypatch.setattr(views, "whole_machine", once(views.whole_machine, 4))
    monkeypatch.setattr(planning, "build_step", once(planning.build_step))
    monkeypatch.setattr(pipelines, "divide", once(pipelines.divide))
    monkeypatch.setattr(pipelines, "pairs_of", once(pipelines.pairs_of))
    monkeypatch.setattr(planning, "plan_job", recorded("plan_job"))
    monkeypatch.setattr(planning, "plan_strategy", recorded("plan_strategy"))
    monkeypatch.setattr(joint, "plan_job_jointly", recorded("plan_job_jointly"))
    monkeypatch.setattr(views, "plan_submeshes", recorded("plan_views"))
    monkeypatch.setattr(verb, "plan_overlap", recorded("plan_overlap", 0))
    monkeypatch.setattr(verb, "plan_portfolio", recorded("plan_portfolio", 0))
    monkeypatch.setattr(pipelines, "search_pairs", recorded("planned"))
    monkeypatch.setattr(pipelined, "audit_pipeline", recorded("audit_pipeline"))


def test_every_option_is_in_the_table_of_its_verb() -> None:
    """A new option without an entry fails here, at the verb's door (`Combinations.refusal`) it would be a gap."""
    for verb, found in commands():
        table = table_of(found)
        assert table.verb == " ".join(verb) and set(table.options) == set(options_of(found)), verb


STARTS = {
    "of a model": ((), ()),
    "of a step": (("--train", "sgd"), ("train",)),
    "of a step that must fit": (("--train", "sgd", "--memory", "1GiB"), ("train", "memory")),
    "recomputed": (("--train", "sgd", "--memory", "1GiB", "--recompute", "auto"), ("train", "memory", "recompute")),
    "recomputed by tensors": (
        ("--train", "sgd", "--memory", "1GiB", "--recompute", "tensors"), ("train", "memory", "recompute")
    ),
    "cut": (("--train", "sgd", "--memory", "1GiB", "--micro-batch", "auto"), ("train", "memory", "micro_batch")),
    "pipelined": (("--train", "sgd", "--pipeline", "2:2"), ("train", "stages")),
    "searched": (("--train", "sgd", "--pipeline", "auto"), ("train", "stages")),
    "interleaved": (("--train", "sgd", "--pipeline", "2:2:2"), ("train", "stages")),
    "configured": (("--train", "sgd", "--pipeline", "2:2", "--strategy", "settings.json"), ("train", "stages", "strategy")),
    "overlapped": (("--train", "sgd", "--overlap"), ("train", "overlap")),
    "with submeshes": (("--train", "sgd", "--views"), ("train", "views")),
    "joint": (("--train", "sgd", "--joint"), ("train", "joint")),
    "best": (("--train", "sgd", "--memory", "1GiB", "--best"), ("train", "memory", "best")),
}  # fmt: skip


NOT_TRIED: Mapping[tuple[str, str], str] = {
    ("run", "size"): "of plans for a range of sizes, and apart from the data: tests/test_sizes.py",
    ("plan", "explain_cost"): "printed behind the plan; rows of the table refuse it beside what prints otherwise",
    **{
        (verb, "operators"): "of models that call one: tests/test_specified.py"
        for verb in ("plan", "import", "audit", "fits")
    },
    ("import", "expert_places"): "of modules with experts: tests/test_torch_experts.py",
    **{(verb, "expert_loads"): "of models with experts: tests/test_indexed_operators.py" for verb in ("plan", "audit")},
    **{("place", n): "of experts: tests/test_expert_places.py" for n in ("experts", "ranks", "copies", "permuted")},
    ("run", "kernels"): "consent to run code of the file, of plans that have some: tests/test_consent.py",
    **{
        ("equal", name): "runs PyTorch: tests/test_equal.py, tests/test_equal_planned.py, tests/test_equal_job.py"
        for name in ("ranks", "grad", "layouts", "alike", "seed", "plan_file", "excess")
    },
    **{("capture", name): "runs PyTorch: tests/test_capture.py" for name in ("ranks", "grad")},
    **{("sweep", name): "begins processes: tests/test_sweep.py" for name in ("workers", "again")},
    ("machine calibrate", "files"): "another beginning, apart from most others: tests/test_calibrate_files.py",
    ("machine calibrate", "plan"): "of files alone: tests/test_calibrate_files.py",
    ("verify-job", "excess"): "runs a module of PyTorch: tests/test_torch_apply.py",
}
ALONE = {"doctor", "machine show", "rules check"}
"""Verbs with no option but `--json`."""

DEAR = {"of a step that must fit", "recomputed", "cut", "searched", "interleaved", "run a pipelined plan"} | {
    *(
        "generate",
        "dtensor",  # the same options: dtensor of an operator
        "schedule a pipeline",
        "schedule a graph",
        "solve an e-graph",
        "explain a joint plan",
        "run an overlapped plan",
        "train",
    )
}


@pytest.mark.usefixtures("planners")
@pytest.mark.parametrize("start", [pytest.param(s, marks=pytest.mark.slow if s in DEAR else ()) for s in STARTS])
def test_plan(start: str, folder: Path) -> None:
    more, given = STARTS[start]
    probes = {k: v for k, v in PLAN.items() if k not in given}
    if "stages" in given and "strategy" in probes:
        probes["strategy"] = ("--strategy", "settings.json")
    if "best" in given:
        probes["without"] = ("--without", "overlap")
    assert not list(Tried(Start(("plan",), (*LINE, *more), probes), folder).faults())


PROBLEMS = Path(__file__).parent / "conformance" / "problems"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind that a verb reads."""
    here = tmp_path_factory.mktemp("files")
    with contextlib.chdir(here), contextlib.redirect_stdout(io.StringIO()):
        line = ["plan", PLAIN, "--machine", "localhost:2"]
        assert run([*line, "--train", "sgd", "-o", "plan.spz"]) == 0
        Path("split.json").write_text(json.dumps({"fc1": {"b": {"ranks": 2}}}))
        assert run([*line, "--train", "sgd", "--strategy", "split.json", "-o", "other.spz"]) == 5  # no optimum
        assert run([*line, "-o", "forward.spz"]) == 0
        assert run([*line, "--joint", "--train", "sgd", "-o", "joint.spz"]) == 0
        for name in ("overlap-chain", "pipeline-two", "views-beside", "schedule-path", "rules-derived"):
            shutil.copy(KEPT / f"{name}.spz", f"{name}.spz")
        kept, _ = read_library(KEPT / "rules-derived.spz")
        swap = read_library(KEPT / "rules-proved.spz")[0].judgements[0]
        steps = Undecided(kept.derivations[0].rule, "not judged yet")
        write_library(Path("two-steps.spz"), Library("two steps", (swap, steps), (), "tests"))
        for k in ("", "2", "3"):
            Path(f"own{k}.toml").write_text(
                f'name = "own{k or 1}"\nformula = "y[i] = 2 * x[i]"\n[operands]\nx = ["i"]\n'
            )
        for name in ("chain.json", "egraph.json"):
            shutil.copy(PROBLEMS / name, name)
        assert run(["import", PLAIN, "-o", "graph.json"]) == 0
        rules = json.loads((Path(__file__).parent / "data" / "rules" / "flexflow-even.json").read_text())
        rules["rule"] = rules["rule"][:1]
        Path("rules.json").write_text(json.dumps(rules))
        Path("hosts").write_text("localhost:2\n")
        Path("known.txt").write_text("1 1 0\n")
        Path("timings.csv").write_text(
            "machine,matrix,reduce,program,algorithm,payload,seconds\n"
            "2x2,[[2 1][1 2]],0,AllReduce,ring,1024,0.001\n2x2,[[2 1][1 2]],0,AllReduce,ring,2048,0.002\n"
            "2x2,[[2 1][1 2]],0,AllReduce,tree,2048,0.003\n"
        )
        assert run(["reduce", "--hierarchy", "2x1", "--axes", "2", "--reduce", "0", "-o", "reduction.spz"]) == 0
        Path("collectives.json").write_text(json.dumps(document()))
        graphs = {
            "forward": read_plan(Path("forward.spz"))[0].user_graph,
            "stages": decode_pipeline(read_container("pipeline-two.spz")).graph,
            "chain": decode_overlap(read_container("overlap-chain.spz")).graph,
        }
        graphs["step"] = read_plan(Path("plan.spz"))[0].user_graph
        for name, graph in graphs.items():
            write_arrays(Path(f"{name}.npz"), random_inputs(graph, 7, "float64"))
        for name in ("step", "stages"):
            rows = Feed(graphs[name], 8).at(1)
            write_arrays(Path(f"{name}-data.npz"), {n: rows[n][None] for n in fed(graphs[name])})
        for plan, name in (("plan", "state"), ("pipeline-two", "stages-state")):
            assert run(["run", f"{plan}.spz", "-n", "2", "--virtual", "--steps", "1", "--save", name]) == 0
    return here


LIMITS: Mapping[str, tuple[str, ...]] = {name: PLAN[name] for name in ("time_limit", "work_limit")}
EXPLAIN: Mapping[str, tuple[str, ...]] = {
    "op": ("--op", "fc1"),
    "instead": ("--instead", "b over ranks"),
    "errors": ("--error", "7%"),
    "symbolic": ("--symbolic",),
    "cost": ("--cost",),
    "state": ("--state",),
    "pcg": ("--pcg",),
    "svg": ("--svg", "x.svg"),
    **LIMITS,
}
RUN: Mapping[str, tuple[str, ...]] = {
    "backend": ("--backend", "numpy"),
    "inputs": ("--inputs", "forward.npz"),
    "seed": ("--seed", "3"),
    "dtype": ("--dtype", "float32"),
    "timeout": ("--timeout", "50"),
    "trace": ("--trace", "t.json"),
    "overlap": ("--no-overlap",),
    "fuse": ("--no-fuse",),
    "pace": ("--pace", "0.001"),
    "from_root": ("--from-root",),
    "communication": ("--communication",),
    "payload": ("--bytes", "64"),
    "repeats": ("--repeat", "1"),
    "output": ("-o", "out.npz"),
    "steps": ("--steps", "1"),
    "data": ("--data", "step-data.npz"),
    "save": ("--save", "saved"),
    "save_every": ("--save-every", "1"),
    "hostfile": ("--hostfile", "hosts"),
    "heartbeat": ("--heartbeat-timeout", "30"),
    "resume": ("--resume", "state"),
    "compare": ("--no-compare",),
}
TRAIN: Mapping[str, tuple[str, ...]] = {
    name: typed for name, typed in RUN.items() if name not in ("steps", "save", "fuse", "overlap", "backend")
}
"""Beside many steps, a state of which is written."""
EXPORT: Mapping[str, tuple[str, ...]] = {
    "resolve": ("--resolve",),
    **LIMITS,
    "layouts_only": ("--layouts-only",),
    "resolved": ("--resolved", "r.spz"),
    "csv": ("--csv", "y.csv"),
}
LAID_OUT = {name: typed for name, typed in EXPORT.items() if name != "layouts_only"}
"""For a target whose files hold layouts alone, whatever is asked."""
REDUCTION: Mapping[str, tuple[str, ...]] = {
    "machine": ("--machine", "dgx-a100"),
    "algorithm": ("--algorithm", "tree"),
    "preset": ("--model", "m0"),
    "order": ("--order", "row-major"),
    "reading": ("--reading", "literal"),
    "engine": ("--engine", "ilp"),
    "output": ("-o", "out.spz"),
}
SCHEDULE: Mapping[str, tuple[str, ...]] = {
    "send": ("--send", "1"),
    "memory": ("--memory", "2"),
    "kind": ("--kind", "gpipe"),
    "engine": ("--engine", "smt"),
    **LIMITS,
    "machine": ("--machine", "cloud-a100"),
    "output": ("-o", "out.spz"),
    "svg": ("--svg", "x.svg"),
    "csv": ("--csv", "x.csv"),
}
IMPORT: Mapping[str, tuple[str, ...]] = {
    **{name: PLAN[name] for name in ("train", "loss", "recompute", "batch", "precision", "micro_batch", "attention")},
    "output": ("-o", "out.json"),
    "list_ops": ("--list-ops",),
}
SOLVE: Mapping[str, tuple[str, ...]] = {
    **{name: PLAN[name] for name in ("engine", "effort", "time_limit", "work_limit", "gap", "threads")},
    "alone": ("--alone",),
    "known": ("--known", "known.txt"),
    "settings": ("--set", "engines.smt_share=0.3"),
    "output": ("-o", "out.spz"),
}
CHECK: Mapping[str, tuple[str, ...]] = {
    "second_opinion": ("--second-opinion",),
    "large": ("--large",),
    "model": ("--model", PLAIN),
    "machine": ("--machine", "localhost:2"),
    "train": ("--train", "sgd"),
    "loss": ("--loss", "squared-error"),
    "recompute": ("--recompute", "fc1"),
    "batch": ("--batch", "8"),
    "show_machine": ("--show-machine",),
}
CHECK_FILE: Mapping[str, tuple[str, ...]] = {
    name: CHECK[name] for name in ("second_opinion", "large", "model", "machine", "show_machine")
}
"""What is asked of a file; how the model that is meant is made is the same for all kinds."""
RULES: Mapping[str, tuple[str, ...]] = {**LIMITS, "jobs": ("--jobs", "1")}
JUDGE: Mapping[str, tuple[str, ...]] = {**RULES, "degree": ("--degree", "3")}
CALIBRATE: Mapping[str, tuple[str, ...]] = {
    "operation": ("--operation", "all_gather"),
    "keep": ("--keep", "x"),
    "conditions": ("--where", "algorithm=ring"),
    "held": ("--hold-out", "payload=2048"),
    "latencies": ("--latencies",),
    "model": ("--model", PLAIN),
    "train": ("--train", "sgd"),
    "batch": ("--batch", "8"),
    "backend": ("--backend", "numpy"),
    "rounds": ("--rounds", "3"),
    "time_limit": ("--time-limit", "50"),
    "save": ("--save", "s.csv"),
    "output": ("-o", "out.toml"),
}
OTHERS: Mapping[str, Start] = {
    "explain a plan": Start(("explain",), ("plan.spz",), EXPLAIN),
    "explain a joint plan": Start(("explain",), ("joint.spz",), {**EXPLAIN, "op": ("--op", "fc3")}),
    "explain a pipelined plan": Start(("explain",), ("pipeline-two.spz",), EXPLAIN),
    "explain a plan with submeshes": Start(("explain",), ("views-beside.spz",), EXPLAIN),
    "run a plan": Start(("run",), ("forward.spz", "-n", "2", "--virtual"), RUN),
    "train": Start(
        ("run",),
        ("plan.spz", "-n", "2", "--virtual", "--steps", "1", "--save", "saved"),
        {**TRAIN, "inputs": ("--inputs", "step.npz")},
    ),
    "run a pipelined plan": Start(("run",), ("pipeline-two.spz", "-n", "2", "--virtual"), {**RUN, "inputs": ("--inputs", "stages.npz"), "data": ("--data", "stages-data.npz"), "resume": ("--resume", "stages-state")}),
    "run an overlapped plan": Start(("run",), ("overlap-chain.spz", "-n", "2", "--virtual"), {**RUN, "inputs": ("--inputs", "chain.npz")}),
    "run a reduction program": Start(("run",), ("reduction.spz", "-n", "2", "--virtual"), RUN),
    "export a reduction program": Start(("export",), ("reduction.spz", "--to", "jax", "-o", "x.py"), EXPORT),
    "place for a mesh": Start(
        ("place",),
        ("--hierarchy", "2x4", "--axes", "2,4", "--reduce", "0,1:1GiB", "--mesh", "m.py", "--to", "jax"),
        {name: REDUCTION[name] for name in ("machine", "algorithm", "preset", "output")},
    ),
    "export for dtensor": Start(("export",), ("plan.spz", "--to", "dtensor", "-o", "x.py"), EXPORT),
    "export a joint plan": Start(("export",), ("joint.spz", "--to", "jax", "-o", "x.py"), LAID_OUT),
    "export a pipelined plan": Start(("export",), ("pipeline-two.spz", "--to", "dtensor", "-o", "x.py"), EXPORT),
    "export a problem": Start(("export",), ("chain.json", "--to", "mps", "-o", "x.mps"), EXPORT),
    "export a plan's problem": Start(("export",), ("plan.spz", "--to", "wcsp", "-o", "x.wcsp"), EXPORT),
    "export actions": Start(("export",), ("pipeline-two.spz", "--to", "actions", "-o", "x.csv"), EXPORT),
    "place": Start(("place",), ("--hierarchy", "2x4", "--axes", "2,4"), {"reductions": ("--reduce", "0,1:1GiB"), "target": ("--to", "jax"), "mesh": ("--mesh", "m.py"), **REDUCTION}),
    "reduce": Start(
        ("reduce",),
        ("--hierarchy", "2x4", "--axes", "2,4", "--reduce", "0,1"),
        {
            **REDUCTION,
            "matrix": ("--matrix", "[[1 2] [2 2]]"),
            "nodes": ("--nodes", "2,1"),
            "payload": ("--bytes", "1MiB"),
            "synthesis": ("--synthesis", "a"),
            "svg": ("--svg", "x.svg"),
            "listed": ("--list",),
        },
    ),
    "reduce nodes": Start(
        ("reduce",),
        ("--nodes", "2,1"),
        {**REDUCTION, "payload": ("--bytes", "1MiB"), "synthesis": ("--synthesis", "a"), "listed": ("--list",)},
    ),
    "schedule a pipeline": Start(("schedule",), ("--stages", "2", "--micro-batches", "3", "--times", "1,2,1"), SCHEDULE),
    "schedule a graph": Start(("schedule",), ("collectives.json",), {**SCHEDULE, "stages": ("--stages", "2")}),
    "import": Start(("import",), (MODEL,), IMPORT),
    "solve": Start(("solve",), ("chain.json",), SOLVE),
    "solve an e-graph": Start(("solve",), ("egraph.json",), SOLVE),
    "print options": Start(("solve",), ("--options",), SOLVE),
    "check a plan": Start(("check",), ("forward.spz",), CHECK),
    "check a schedule": Start(("check",), ("schedule-path.spz",), {"large": ("--large",)}),  # others: test_check_says_alike
    "check an overlapped plan": Start(("check",), ("overlap-chain.spz",), CHECK_FILE),
    "check a pipelined plan": Start(("check",), ("pipeline-two.spz",), CHECK_FILE),
    "check a plan with submeshes": Start(("check",), ("views-beside.spz",), CHECK_FILE),
    "check a joint plan": Start(("check",), ("joint.spz",), CHECK_FILE),
    "report": Start(("report",), ("plan.spz", "-o", "x.html"), LIMITS),
    "diff": Start(("diff",), ("plan.spz", "other.spz"), {**LIMITS, "output": ("-o", "x.html")}),
    "sensitivity": Start(("sensitivity",), ("forward.spz",), {**LIMITS, "solve_limit": ("--solve-limit", "9")}),
    "calibrate from timings": Start(("machine", "calibrate"), ("p2-a100", "--timings", "timings.csv"), CALIBRATE),
    "prove": Start(("rules", "prove"), ("rules.json", "-o", "out.spz"), JUDGE),
    "refute": Start(("rules", "refute"), ("rules.json", "-o", "out.spz"), JUDGE),
    "derive": Start(
        ("rules", "derive"),
        ("two-steps.spz", "--from", "rules-derived.spz"),
        {**RULES, "steps": ("--steps", "1"), "only": ("--only", "derived"), "output": ("-o", "out.spz")},
    ),
    "dtensor": Start(("rules", "dtensor"), ("--only", "aten.permute*", "-o", "out.spz"), {**RULES, "reduction": ("--partial", "max")}),
    "dtensor of an operator": Start(("rules", "dtensor"), ("--operator", "own.toml", "--operator", "own2.toml", "-o", "out.spz"), {**RULES, "only": ("--only", "own[13]"), "operators": ("--operator", "own3.toml")}),
    "generate": Start(
        ("rules", "generate"),
        ("--operators", "2", "-o", "out.spz"),
        {"most": ("--operators", "1"), "operators": ("--operator", "own.toml"), "pools": ("--pool", "kernels"), "jobs": ("--jobs", "1"), "journal": ("--journal", "j.json")},
    ),
    "show rules": Start(("rules", "show"), ("--library", "rules.json"), {"svg": ("--svg", "x.svg"), "flexflow": ("--flexflow", "f.json"), "smtlib": ("--smtlib", "s.smt")}),
}  # fmt: skip


@pytest.mark.parametrize("verb", [pytest.param(v, marks=pytest.mark.slow if v in DEAR else ()) for v in OTHERS])
def test_verbs(verb: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    assert not list(Tried(OTHERS[verb], files).faults())


AUDIT: Mapping[str, tuple[str, ...]] = {
    **{name: PLAN[name] for name in ("train", "recompute", "batch", "attention", "memory", "space_name")},
    "pipeline": PLAN["stages"],
    "against": ("--against", "FULL_SHARD"),
    "precision": PLAN["precision"],
    "carry": ("--propagate",),
    "joint": ("--joint",),
    "rewritten": ("--rewritten", MODEL.replace("layers=2", "layers=3")),
    **{
        name: PLAN[name]
        for name in (
            "engine",
            "effort",
            "time_limit",
            "work_limit",
            "gap",
            "rules",
            "rewrite_rounds",
            "rewrite_nodes",
            "rewrite_time",
        )
    },
}
MACHINE = ("--machine", "localhost:2")


FITS: Mapping[str, tuple[str, ...]] = {
    **{name: PLAN[name] for name in ("train", "recompute", "batch", "attention", "memory", "precision")},
    "strategy": ("--strategy", "FULL_SHARD"),
    "reserve": ("--reserve", "1GiB"),
    **{name: PLAN[name] for name in ("time_limit", "work_limit")},
}


def test_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shardproof.formal.verbs.fits as verb

    monkeypatch.setattr(verb, "job_of", recorded("job_of"))
    load_once(monkeypatch)
    monkeypatch.setattr(verb, "load_machine", once(verb.load_machine))
    assert not list(Tried(Start(("fits",), (MODEL, *MACHINE), FITS), folder).faults())


@pytest.mark.parametrize(
    "line",
    [
        (MODEL, *MACHINE, "--strategy", "strategy.json"),
        (MODEL, *MACHINE, "--strategy", "any-batch.json"),
        ("chain.json", "--strategy", "choices.json"),
    ],
    ids=["degrees", "settings", "choices"],
)
def test_audit(line: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shardproof.formal.verbs.audit as verb

    shutil.copy(PROBLEMS / "chain.json", "chain.json")
    Path("choices.json").write_text("[0, 0]")
    Path("any-batch.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    for name in ("carry_out_audit", "carry_out_audit_of_choices", "audit_program", "audit_pipelined", "audit_against"):
        monkeypatch.setattr(verb, name, recorded(name))
    load_once(monkeypatch)
    monkeypatch.setattr(verb, "load_machine", once(verb.load_machine))
    assert not list(Tried(Start(("audit",), line, AUDIT), folder).faults())


KEYWORDS: Mapping[str, object] = {
    "batch": 8,
    "train": "sgd",
    "loss": "squared-error",
    "recompute": "all",
    "precision": "bf16-mixed",
    "micro_batch": 2,
    "memory": "1GiB",
    "space_name": "one-per-level",
    "vocabulary": "dtensor",
    "attention": "operator",
    "strategy": "strategy.json",
    "joint": True,
    "rules": (KEPT / "rules-proved.spz",),
    "rewrite_rounds": 3,
    "rewrite_nodes": 70,
    "rewrite_time": 7.0,
    "views": True,
    "engine": "ilp",
    "time_limit_s": 50.0,
    "gap": Fraction(7, 100),
    "threads": 1,
}


@pytest.mark.usefixtures("planners")
@pytest.mark.parametrize("always", [{}, {"train": "sgd"}], ids=["of a model", "of a step"])
def test_pairs_of_keywords_in_python(always: dict[str, object], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table: `shardproof.plan` refuses or honours every pair."""
    from shardproof.models.sources import objects

    load = cache(objects.load_model)
    monkeypatch.setattr(
        objects, "load_model", lambda spec, batch, _, attention, *__: load(spec, batch, None, attention)
    )

    def outcome(*names: str) -> str:
        given = {name: KEYWORDS[name] for name in names}
        try:
            shardproof.plan(MODEL, "localhost:2", **always, **given)  # type: ignore[call-overload]
        except Recorded as what:
            return repr(what.what)
        except InputError as error:
            assert any(name in str(error) for name in (*names, *always)) and "--" not in str(error), (names, error)
            return "refused"
        raise AssertionError(f"{names} reached no planner")

    probes = [name for name in KEYWORDS if name not in always]
    alone = {name: outcome(name) for name in probes}
    for one, other in combinations(probes, 2):
        both = outcome(one, other)
        assert both == "refused" or both not in (alone[one], alone[other]), (one, other)


def outcomes(
    call: Callable[..., object], always: Mapping[str, object], probes: Mapping[str, object], *given: object
) -> Iterator[tuple[str, str]]:
    """Pairs of keywords of a function of ours that drops one of the two; a refusal names what was given in Python."""

    def outcome(*names: str) -> str:
        try:
            call(MODEL, "localhost:2", *given, **always, **{name: probes[name] for name in names})
        except Recorded as what:
            return repr(what.what)
        except InputError as error:
            assert any(name in str(error) for name in (*names, *always)) and "--" not in str(error), (names, error)
            return "refused"
        raise AssertionError(f"{names} reached no planner")

    base, alone = outcome(), {name: outcome(name) for name in probes}
    for name in probes:
        if alone[name] == base:
            yield name, "nothing"
    for one, other in combinations(probes, 2):
        both = outcome(one, other)
        if both != "refused" and both in (alone[one], alone[other]):
            yield one, other


def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of models that Python names."""
    from shardproof.models.sources import objects

    load = cache(objects.load_model)
    monkeypatch.setattr(
        objects, "load_model", lambda spec, batch, _, attention, *__: load(spec, batch, None, attention)
    )


PIPELINE: Mapping[str, object] = {
    "stages": "2:2",
    "interleave": 2,
    "strategy": "settings.json",
    **{name: KEYWORDS[name] for name in ("batch", "loss", "recompute", "precision", "memory", "space_name")},
    **{name: KEYWORDS[name] for name in ("time_limit_s", "gap")},
    "work_limit": 40_000_000,
}


@pytest.mark.usefixtures("planners", "folder")
@pytest.mark.parametrize(
    "always",
    [
        {},
        {"stages": "2:2"},
        {"stages": "2:2:2"},
        {"strategy": "settings.json", "stages": "2:2"},
        {"recompute": "auto", "memory": "1GiB"},
    ],
    ids=["searched", "of stages", "of chunks", "configured", "recomputed"],
)
def test_pairs_of_keywords_of_pipelines_in_python(always: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    from shardproof.formal.plans.pipelines import audit as audited

    read_once(monkeypatch)
    monkeypatch.setattr(audited, "audit_pipeline", recorded("audit_pipeline"))
    probes = {name: value for name, value in PIPELINE.items() if name not in always}
    assert not list(outcomes(shardproof.pipeline, always, probes, "sgd"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("strategy", ["strategy.json", "any-batch.json", "layouts.json"])
def test_pairs_of_keywords_of_audits_in_python(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardproof.formal.explain import request

    read_once(monkeypatch)
    Path("any-batch.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    Path("layouts.json").write_text(json.dumps({"mesh": {"x": 2}, "specs": {"*query.weight": ["x", None]}}))
    monkeypatch.setattr(request, "carry_out_audit", recorded("carry_out_audit"))
    names = ("batch", "attention", "memory", "space_name", "engine", "time_limit_s", "gap")
    probes = {**{name: KEYWORDS[name] for name in names}, "carry": True, "work_limit": 40_000_000}
    assert not list(outcomes(shardproof.audit, {}, probes, strategy))


def test_every_option_is_tried() -> None:
    """What no beginning types is here, with the reason: a new option fails until it is tried."""
    typed: dict[str, set[str]] = {}
    for start in (
        *OTHERS.values(),
        Start(("plan",), LINE, PLAN),
        Start(("audit",), (*MACHINE, "--strategy", "x"), AUDIT),
        Start(("fits",), MACHINE, FITS),
    ):
        words = {p: name for name, p in options_of(command(start.verb)).items()}
        found = typed.setdefault(" ".join(start.verb), set())
        found |= {*start.probes} | {words[w] for w in start.line if w in words}
    missing, alone = set(), set()
    for path, tried in commands():
        verb, names = " ".join(path), {*table_of(tried).options} - {"force", "as_json", "compare", "output"}
        missing |= {(verb, name) for name in names if name not in typed.get(verb, ())}
        alone |= {verb} - typed.keys() if not names else set()
    assert missing == NOT_TRIED.keys()
    assert alone == ALONE


@pytest.mark.parametrize(
    "given", [{"batch": 4}, {"inputs": (1,)}, {"attention": "matrices"}], ids=["batch", "inputs", "attention"]
)
def test_a_graph_has_its_sizes_and_its_attention(given: dict[str, object]) -> None:
    """Dropped before: what a graph cannot be asked for any more."""
    graph = load_model("attention", None, None, "operator")
    with pytest.raises(InputError, match="sizes already|have their shapes|is not taken apart"):
        shardproof.plan(graph, "localhost:2", **given)  # type: ignore[call-overload]
