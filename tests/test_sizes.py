"""Plans for a range of sizes: at every size of a range what is shown of it holds against the size's own optimum, what is
not known to grow in one way is refused by name, and what is run is what the data say.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from conformance import sizes as hand_made

from shardproof.__main__ import run
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.sizes import size_range
from shardproof.front_door import FrontDoor
from shardproof.models.cost.sized import SizedJob, SizeEnd
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.sized import SizedGraph
from shardproof.models.program.tensor import GraphError
from shardproof.models.sources.load import load_model
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container
from shardproof.verify.budget import Budget
from shardproof.verify.portfolio import sizes as checker
from shardproof.verify.portfolio.sizes import CheckedSizes, SizeClass, class_between
from shardproof.verify.verbs.kinds import Effort, require_known

TEXT = """
import numpy as np
from shardproof import float64, parameter
def layer(x: float64["N", 12], w: parameter(12, 24), v: parameter(24, 12)): return np.maximum(x @ w, 0) @ v
def square(a: float64["N", "N"], b: float64["N", "N"]): return a @ b
def soft(x: float64["N", "N"]):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
def norm(x: float64["N", 12]): return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
def gram(x: float64["N", 12]): return x.T @ x
def shifted(x: float64["N", 12]): return x[1:] - x[:-1]
def odd(x: float64["N", 12]): return x @ x.T if x.shape[0] == 64 else x * 2
def glued(x: float64["N", 8], y: float64["N", 8]): return np.concatenate([x, y], axis=0) * 2
def half(x: float64["N", 12]): return x[: x.shape[0] // 2] * 2
def rescaled(x: float64["N", 12]): return x * float(x.shape[0] ** 2)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sizes") / "sized.py"
    path.write_text(TEXT)
    return str(path)


def machine(latency: str, flops: int, memory: int, link: int, devices: int = 2) -> Machine:
    """One level of links and one class of devices."""
    base = json.loads(load_machine(f"localhost:{devices}").to_json())
    base["level"][0] |= {"latency": latency, "bandwidth": str(link)}
    base["device_class"][0] |= {"bandwidth": str(memory), "peaks": {"float64": str(flops)}}
    kept = ("level.ranks", "device_class.core.memory", "device_class.core.bandwidth", "device_class.core.peaks.float64")
    base["sources"] = {k: v for k, v in base["sources"].items() if k.startswith(kept)}
    return Machine.from_json(json.dumps(base))


PLAIN = machine("1/1000000", 10**9, 10**9, 10**9)
TURNING = machine("1/10000000", 2 * 10**9, 3 * 10**9, 4 * 10**9)
"""Links and memory so fast that the same product is bound by bytes at some sizes and by flops at others."""
DEAR = machine("1/200000", 10**10, 10**10, 10**8)
"""Few rows are not worth a message."""


def end(graph: Graph, on: Machine, size: int) -> SizeEnd:
    found = plan_graph(graph, on, space("complete"))
    answer = found.answer
    assert answer.solution is not None and answer.lower_bound == answer.cost
    return SizeEnd(size, found.planning, answer.solution, found.planning.problem.cost_of(answer.solution))


def job(file: str, name: str, on: Machine, low: int, high: int) -> SizedJob:
    graphs = (load_model(f"{file}:{name}:N={n}") for n in (low, high))
    return SizedJob(SizedGraph("N", (low, high), *graphs).check(), on, space("complete"))


CASES = [
    ("layer", PLAIN, 16, 64),
    ("layer", DEAR, 16, 160),
    ("layer", TURNING, 8, 64),
    ("square", PLAIN, 16, 48),
    ("square", TURNING, 8, 64),
    ("soft", PLAIN, 16, 64),
    ("norm", DEAR, 16, 80),
    ("gram", TURNING, 8, 80),
]


@pytest.mark.parametrize(("name", "on", "low", "high"), CASES)
def test_what_is_shown_holds_at_every_size(name: str, on: Machine, low: int, high: int, file: str) -> None:
    """Against the optimum of every size, found anew: the cost of the placements, the bound, and the gap."""
    sized = job(file, name, on, low, high)
    assert not sized.reason_against and not low % sized.step
    ends = tuple(end(sized.programs.at(n), on, n) for n in (low, high))
    found = [class_between(sized, sized.step, ends, taken, Fraction(1, 50), Budget.with_large()) for taken in ends]
    for size in range(low, high + 1, sized.step):
        graph = load_model(f"{file}:{name}:N={size}")
        assert graph.to_json() == sized.programs.at(size).to_json()
        own = end(graph, on, size)
        for one, taken in zip(found, ends, strict=True):
            cost = own.planning.problem.cost_of(taken.solution or ())
            assert one.bound_at(size) <= own.cost <= cost <= one.cost_at(size)
            if low < size < high:
                assert one.gap >= Fraction(cost - own.cost, cost)


def test_maxima_that_change_sides_cost_something(file: str) -> None:
    """Between two sizes one of which is bound by bytes and the other by flops the bound is below the optimum at the
    ends; a bound through both optima would be above that of a size between.
    """
    sized = job(file, "square", TURNING, 8, 64)
    ends = tuple(end(sized.programs.at(n), TURNING, n) for n in (8, 64))
    one = class_between(sized, sized.step, ends, ends[0], Fraction(0), Budget.with_large())
    assert one.bounds[0] < ends[0].bound or one.bounds[1] < ends[1].bound
    straight = SizeClass(one.ends, one.step, one.costs, (ends[0].bound, ends[1].bound), one.slack, one.degree)
    between = [end(sized.programs.at(n), TURNING, n) for n in range(12, 64, 4)]
    assert any(straight.bound_at(e.size) > e.cost for e in between)
    assert all(one.bound_at(e.size) <= e.cost for e in between)


def test_the_worst_size_is_found() -> None:
    """Halving finds what looking at all of them does."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        degree, step = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        inner = sorted({int(n) for n in rng.integers(1, 30, 4)})
        sizes = [n * step for n in (*inner, inner[-1] + int(rng.integers(1, 30)))]
        costs = tuple(zip(sizes, sorted(int(n) for n in rng.integers(100, 10**6, len(sizes))), strict=True))
        bounds = tuple(int(c * rng.uniform(0.5, 1)) for c in (costs[0][1], costs[-1][1]))
        one = SizeClass((sizes[0], sizes[-1]), step, costs, (bounds[0], bounds[1]), 3, degree)
        every = [one.gap_at(n) for n in range(sizes[0] + step, sizes[-1], step)]
        assert one.gap == min(Fraction(1), max(every, default=Fraction(0)))


def judged(data: bytes) -> CheckedSizes:
    members = read_container(data)
    found = require_known(members, "test").judge(members, Effort(), {})
    assert isinstance(found.held, CheckedSizes)
    return found.held


@pytest.mark.parametrize("fault", ["bounds", "slack", "sides"])
def test_a_checker_that_shows_too_much_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Mutants of the parts that make bounds: the comparison with every size fails for each of them."""
    if fault == "bounds":
        monkeypatch.setattr(checker, "_shown", lambda at, kept: at.bound)
    elif fault == "slack":
        monkeypatch.setattr(SizeClass, "cost_at", lambda self, size: Fraction(self.costs[0][1]))
    else:  # the other side of every maximum at the upper end
        kept = checker._kept_sides
        monkeypatch.setattr(checker, "_kept_sides", lambda low, high: (kept(low, high)[0], kept(high, low)[0]))
        monkeypatch.setattr(checker, "_shown", lambda at, kept: at.bound)
    with pytest.raises(AssertionError):
        test_what_is_shown_holds_at_every_size("square", TURNING, 8, 64, file)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shifted", "neither equal nor in proportion|in another way than along one axis"),
        ("half", "in another way than along one axis"),
        ("odd", "neither equal nor in proportion"),
        ("rescaled", "neither equal nor in proportion"),
        ("glued", "'concatenate': is another one for N = 128 than for N = 64"),
    ],
)
def test_what_grows_in_another_way_is_refused(name: str, words: str, file: str, tmp_path: Path, capsys) -> None:
    line = ["plan", f"{file}:{name}:N=64..128", "--machine", "localhost:2", "-o", str(tmp_path / "p.spz")]
    assert run(line) == 3
    said = capsys.readouterr().err
    assert any(word in said for word in words.split("|")) and "sweep" in said


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ("N=64..32", "is no range of sizes"),
        ("N=64..64", "is no range of sizes"),
        ("N=0..64", "is no range of sizes"),
        ("N=64..128+0", "is no range of sizes"),
        ("N=64..128*2", "a range, N=64..4096, is for 'shardproof plan' on the command line"),
        ("N=64..128+2", "write N=64..128+4"),
        ("N=65..127+4", "write N=68..124+4"),
        ("N=65..67", "blocks have one length at multiples of 4"),
    ],
)
def test_ranges_are_ranges(sizes: str, words: str, file: str, tmp_path: Path, capsys) -> None:
    line = ["plan", f"{file}:layer:{sizes}", "--machine", "localhost:2", "-o", str(tmp_path / "p.spz")]
    assert run(line) == 3
    assert words in capsys.readouterr().err


def test_one_range_alone() -> None:
    with pytest.raises(InputError, match="one size has a range"):
        size_range("f.py:f:N=64..128,H=8..16")
    assert size_range("f.py:f:N=64") is None and size_range("bert-tiny:N=1..2") is None


@pytest.mark.parametrize(
    "option", [("--train", "sgd"), ("--memory", "1GiB"), ("--joint",), ("--best",), ("--overlap",)]
)
def test_options_of_one_size_are_refused(option: tuple[str, ...], file: str, tmp_path: Path, capsys) -> None:
    line = ["plan", f"{file}:layer:N=64..128", "--machine", "localhost:2", *option, "-o", str(tmp_path / "p.spz")]
    assert run(line) == 3
    assert f"a range of sizes and {option[0]} do not go together" in capsys.readouterr().err


def test_machines_with_measured_times_are_refused(file: str, tmp_path: Path, capsys) -> None:
    line = ["plan", f"{file}:layer:N=64..128", "--machine", "dgx-h100:1x2", "-o", str(tmp_path / "p.spz")]
    assert run(line) == 3
    assert "has measured times" in capsys.readouterr().err


@pytest.fixture(scope="module")
def planned(file: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("planned") / "norm.spz")
    assert run(["plan", f"{file}:norm:N=30..1000", "--machine", "localhost:2", "-o", path, "--json"]) == 0
    return path


def test_the_command_line_plans_checks_and_says(planned: str, file: str, capsys) -> None:
    capsys.readouterr()
    assert run(["check", planned, "--json", "--model", f"{file}:norm:N=122"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [c["verdict"] for c in said["claims"][:2]] == ["proved", "proved"] and said["plans"][0]["gap"] <= 0.01
    assert run(["check", planned, "--model", f"{file}:gram:N=122"]) == 10
    assert run(["explain", planned]) == 3
    assert "holds plans for a range of sizes" in capsys.readouterr().err


def test_the_same_command_gives_the_same_bytes(planned: str, file: str, tmp_path: Path) -> None:
    again = tmp_path / "again.spz"
    assert run(["plan", f"{file}:norm:N=30..1000", "--machine", "localhost:2", "-o", str(again)]) == 0
    assert again.read_bytes() == Path(planned).read_bytes()


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [(122, 0, '"equal": true'), (1000, 0, '"equal": true'), (123, 3, "N = 123"), (8, 3, "N = 8")],
)
def test_the_size_is_that_of_the_data(rows: int, code: int, words: str, planned: str, tmp_path: Path, capsys) -> None:
    arrays = str(tmp_path / "in.npz")
    np.savez(arrays, x=np.random.default_rng(0).normal(size=(rows, 12)))
    assert run(["run", planned, "-n", "2", "--virtual", "--inputs", arrays, "--json"]) == code
    said = capsys.readouterr()
    assert words in said.out + said.err


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--size", "64"), 0, "equal"),
        (("--size", "64", "--backend", "numba"), 0, "equal"),
        ((), 3, "say which, --size 30 or --inputs"),
        (("--size", "63"), 3, "and not for N = 63"),
        (("--size", "64", "--steps", "2"), 3, "do not go together"),
    ],
)
def test_a_size_is_said(more: tuple[str, ...], code: int, words: str, planned: str, capsys) -> None:
    capsys.readouterr()
    assert run(["run", planned, "-n", "2", "--virtual", *more]) == code
    said = capsys.readouterr()
    assert words in said.out + said.err


def test_a_size_is_of_plans_for_a_range(file: str, tmp_path: Path, capsys) -> None:
    path = str(tmp_path / "one.spz")
    assert run(["plan", f"{file}:norm:N=32", "--machine", "localhost:2", "-o", path]) == 0
    assert run(["run", path, "-n", "2", "--virtual", "--size", "32"]) == 3
    assert "other plans are of one size" in capsys.readouterr().err


def test_the_plan_of_a_size_says_what_is_shown_of_it() -> None:
    held = judged(Path(__file__).with_name("conformance").joinpath("proved", "sizes-layer.spz").read_bytes())
    path = Path(__file__).with_name("conformance") / "proved" / "sizes-layer.spz"
    for size in (64, 100, 128, 200, 256):
        found = FrontDoor().open_sized(path, lambda head, programs, size=size: size)
        cost, bound = held.shown_at(size)
        assert found.published.cost is not None and found.published.lower_bound is not None
        assert bound <= found.published.lower_bound <= found.published.cost <= cost
        assert found.held.graph.to_json() == hand_made.layer(size).to_json()


def test_means_divide_by_the_size(file: str) -> None:
    grown = job(file, "norm", PLAIN, 30, 90).programs
    for size in (30, 34, 49, 77, 90):
        assert grown.at(size).to_json() == load_model(f"{file}:norm:N={size}").to_json()


def test_families_are_families(file: str) -> None:
    low, high = (load_model(f"{file}:layer:N={n}") for n in (16, 48))
    with pytest.raises(GraphError, match="neither equal nor in proportion"):
        SizedGraph("N", (16, 40), low, high).check()
    with pytest.raises(GraphError, match="is another one for N = 48"):
        SizedGraph("N", (16, 48), low, load_model(f"{file}:gram:N=48")).check()


def test_the_page_says_what_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The example of docs/array-programs.md, line by line."""
    page = Path(__file__).parents[1].joinpath("docs", "array-programs.md").read_text(encoding="utf-8")
    shown = page.split("$ shardproof plan prog.py:layer:N=64..4096,H=96")[1].split("```")[0].splitlines()[1:]
    monkeypatch.chdir(tmp_path)
    head = "import numpy as np\nfrom shardproof import float64, parameter\n"
    layer = (
        'def layer(x: float64["N", 48], w: parameter(48, "H"), v: parameter("H", 48)): return np.maximum(x @ w, 0) @ v'
    )
    Path("prog.py").write_text(f"{head}{layer}\n")
    rng = np.random.default_rng(0)
    np.savez("in.npz", x=rng.normal(size=(1024, 48)), w=rng.normal(size=(48, 96)), v=rng.normal(size=(96, 48)))
    assert run(["plan", "prog.py:layer:N=64..4096,H=96", "--machine", "localhost:4", "-o", "layers.spz"]) == 0
    assert run(["run", "layers.spz", "-n", "4", "--virtual", "--inputs", "in.npz"]) == 0
    assert run(["run", "layers.spz", "-n", "4", "--virtual", "--size", "1023"]) == 3
    said = capsys.readouterr()
    lines = [line.rstrip() for line in (said.out + said.err).splitlines()]
    commands = [line for line in shown if line.startswith("$")]
    wanted = [line for line in shown if line and not line.startswith(("$", "note: compared"))]
    assert len(commands) == 2 and len(wanted) == 7 and [line for line in wanted if line not in lines] == []
