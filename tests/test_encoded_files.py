"""Files for other solvers, solved by solvers that are not ours (HiGHS, z3, toulbar2), and what they answer read back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from network_families import HAS_TOULBAR2
from oracles import brute_force
from random_problems import graphs_of_all_kinds

import shardproof
from shardproof import load
from shardproof.__main__ import run
from shardproof.formal.selection.engines.encodings.answers import read_answer
from shardproof.formal.selection.engines.encodings.files import encode_problem
from shardproof.models.problem.pseudo_boolean import from_opb
from shardproof.models.problem.selection_problem import Edge, ProblemError, SelectionProblem, Usage, Vertex
from shardproof.models.problem.wcsp import from_wcsp
from shardproof.models.text import InputError
from shardproof.proofs.publishing.publisher import ENCODINGS, Encoded
from shardproof.proofs.selection.load import load_selection_problem

Answer = tuple[int | None, str]
"""What a solver says that the file costs, and what it writes; None: infeasible."""


def highs(written: Encoded, file: Path) -> Answer:
    import highspy

    file.write_text(written.text)
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 0.0)
    assert solver.readModel(str(file)) == highspy.HighsStatus.kOk
    solver.run()
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, ""
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    solver.writeSolution(str(file.with_suffix(".sol")), 0)
    return round(solver.getInfo().objective_function_value), file.with_suffix(".sol").read_text()


def z3(written: Encoded, file: Path) -> Answer:
    import z3 as solver

    file.write_text(written.text)
    optimize = solver.Optimize(ctx=solver.Context())
    optimize.from_file(str(file))
    if optimize.check() == solver.unsat:
        return None, ""
    goals = optimize.objectives()
    violated = optimize.model().eval(goals[0], model_completion=True) if goals else None
    return 0 if violated is None else int(str(violated)), optimize.model().sexpr()


_ASK = """
import json, sys
import pytoulbar2
network = pytoulbar2.CFN()
try:
    network.Read(sys.argv[1])
    found = network.Solve()
except pytoulbar2.tb2.Contradiction:
    found = None
print("\\n" + json.dumps(None if found is None else [round(found[1]), list(found[0])]))
"""


def toulbar2(written: Encoded, file: Path) -> Answer:
    """In a process of its own: what one file sets stays set for the next."""
    file.write_text(written.text)
    ran = subprocess.run([sys.executable, "-c", _ASK, str(file)], check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    if found is None:
        return None, ""
    cost, values = found
    return cost, " ".join(map(str, values))


def z3_of_opb(written: Encoded, file: Path) -> Answer:
    """No solver that reads the format comes as a wheel (pytoulbar2 1.4 refuses its own option): z3 is told line by line,
    as the rules of the competitions have it.
    """
    import z3 as solver

    header, *lines = (line for line in written.text.splitlines() if line)
    optimize = solver.Optimize()
    names: dict[str, object] = {}
    count, goal = 0, None
    for line in lines:
        if line.startswith("*"):
            continue
        assert line.endswith(" ;")
        words = line.removesuffix(" ;").removeprefix("min: ").split()
        right = None if line.startswith("min: ") else int(words.pop())
        sign = None if right is None else words.pop()
        terms = []
        for n, name in zip(words[::2], words[1::2], strict=True):
            assert n[0] in "+-" and name[0] == "x"
            terms.append(int(n) * solver.If(names.setdefault(name, solver.Bool(name)), 1, 0))
        if right is None:
            goal = solver.Sum(terms)
        else:
            optimize.add(solver.Sum(terms) == right if sign == "=" else solver.Sum(terms) >= right)
            count += 1
    assert header == f"* #variable= {len(names)} #constraint= {count}"
    found = optimize.minimize(goal)
    if optimize.check() == solver.unsat:
        return None, ""
    model = optimize.model()
    values = " ".join(f"{'' if solver.is_true(model.eval(x)) else '-'}{name}" for name, x in names.items())
    return int(str(found.value())), f"s OPTIMUM FOUND\nv {values}"


SOLVERS: dict[str, tuple[str, Callable[[Encoded, Path], Answer]]] = {
    "lp": ("lp", highs),
    "mps": ("mps", highs),
    "smt2": ("smt2", z3),
    "opb": ("opb", z3_of_opb),
    "wcsp": ("wcsp", toulbar2),
}
SEEDS = {toulbar2: 12, z3_of_opb: 30}
"""Problems of each kind, 100 where a solver needs no process of its own."""


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("to", SOLVERS)
def test_the_optimum_of_another_solver_is_that_of_enumeration(to: str, rows: bool, tmp_path: Path) -> None:
    suffix, solver = SOLVERS[to]
    if solver is toulbar2 and not HAS_TOULBAR2:
        pytest.skip("pytoulbar2 is not installed")
    solved = 0
    for seed in range(SEEDS.get(solver, 100)):
        problem = graphs_of_all_kinds(seed, rows=rows, largest=5, labels=3)
        optimum, _ = brute_force(problem)
        try:
            written = encode_problem(problem, to)
        except InputError as error:
            assert optimum is None and "nothing to ask" in str(error), seed
            continue
        said, text = solver(written, tmp_path / f"p.{suffix}")
        if optimum is None:
            assert said is None, seed
            continue
        assert said is not None and said + written.shift == optimum << written.problem.fine_bits, seed
        x = read_answer(text, problem)
        assert problem.cost_of(x) == optimum, seed
        solved += 1
    assert solved > 4


def test_every_format_has_a_solver_here() -> None:
    assert {*SOLVERS, "json"} == {*ENCODINGS}


def test_costs_of_many_bits_are_written_whole(tmp_path: Path) -> None:
    """Doubles hold 53 bits, files hold all."""
    big = (1 << 55) + 1
    problem = SelectionProblem("big", (Vertex("v", np.array([big, big + 1])),), (), (), constant=3)
    for to in SOLVERS:
        text = encode_problem(problem, to).text
        assert str(big) in text or to in ("wcsp", "smt2"), to
    said, text = z3(encode_problem(problem, "smt2"), tmp_path / "p.smt2")
    assert said is not None and said + encode_problem(problem, "smt2").shift == big + 3
    assert read_answer(text, problem) == (0,)


def test_nothing_is_asked_of_nothing() -> None:
    for to in SOLVERS:
        with pytest.raises(InputError, match="no vertices"):
            encode_problem(SelectionProblem("none", (), (), ()), to)
    with pytest.raises(InputError, match="no encoding 'cnf': json, lp"):
        encode_problem(two(), "cnf")


def test_our_own_readers_read_what_is_written() -> None:
    for seed in range(40):
        problem = graphs_of_all_kinds(seed, largest=4, labels=3)
        optimum, _ = brute_force(problem)
        if optimum is None:
            continue
        written = encode_problem(problem, "wcsp")
        again, _ = brute_force(from_wcsp(written.text.encode()))
        assert again is not None and again + written.shift == optimum << written.problem.fine_bits, seed
        assert from_opb(encode_problem(problem, "opb").text.encode()).vertices


def test_rows_are_read_back_from_what_is_written() -> None:
    """`knapsackp` of our own wcsp files."""
    bound = 0
    for seed in range(60):
        problem = graphs_of_all_kinds(seed, rows=True, largest=5, labels=3)
        optimum, _ = brute_force(problem)
        if optimum is None:
            continue
        written = encode_problem(problem, "wcsp")
        again, _ = brute_force(from_wcsp(written.text.encode()))
        assert again is not None and again + written.shift == optimum << written.problem.fine_bits, seed
        bound += "knapsackp" in written.text
    assert bound > 10


@pytest.mark.skipif(not HAS_TOULBAR2, reason="pytoulbar2 is not installed")
def test_weights_of_any_sign_mean_what_toulbar2_says(tmp_path: Path) -> None:
    """Random `knapsack` and `knapsackp` functions, values without a weight and several rows among them."""
    kinds = {True: 0, False: 0}
    for seed in range(25):
        text = random_knapsacks(seed)
        ours, _ = brute_force(from_wcsp(text.encode()))
        theirs, _ = toulbar2(Encoded(two(), text), tmp_path / "p.wcsp")
        assert ours == theirs, (seed, text)
        kinds[ours is None] += 1
    assert kinds[False] > 8, kinds


def random_knapsacks(seed: int) -> str:
    """A network of four variables with costs of single values and two or three rows."""
    draw = np.random.default_rng(seed)
    sizes = [int(n) for n in draw.integers(2, 4, 4)]
    functions = []
    for v, size in enumerate(sizes):
        costs = draw.integers(0, 9, size)
        functions.append(f"1 {v} 0 {size}\n" + "".join(f"{a} {c}\n" for a, c in enumerate(costs)))
    for _ in range(int(draw.integers(2, 4))):
        scope = sorted(int(v) for v in draw.choice(4, int(draw.integers(2, 5)), replace=False))
        words, least = [], 0
        for v in scope:
            values = sorted(int(a) for a in draw.choice(sizes[v], int(draw.integers(1, sizes[v] + 1)), replace=False))
            weights = [int(w) for w in draw.integers(-3, 6, len(values))]
            words.append(f"{len(values)} " + " ".join(f"{a} {w}" for a, w in zip(values, weights, strict=True)))
            least += max(weights)
        functions.append(
            f"{len(scope)} {' '.join(map(str, scope))} -1 knapsackp {max(least - 2, 1)} {' '.join(words)}\n"
        )
    two_valued = [v for v, size in enumerate(sizes) if size == 2]
    if len(two_valued) > 1:
        weights = " ".join(str(int(w)) for w in draw.integers(1, 5, len(two_valued)))
        functions.append(f"{len(two_valued)} {' '.join(map(str, two_valued))} -1 knapsack 2 {weights}\n")
    head = f"random {len(sizes)} {max(sizes)} {len(functions)} 1000\n{' '.join(map(str, sizes))}\n"
    return head + "".join(functions)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("2 0 1 -1 knapsackp 1 1 0 3", "ends"),
        ("2 0 1 -1 knapsackp 1 1 2 3 0", "a value"),
        ("2 0 1 -1 knapsackp 1 2 0 3 0 4 0", "has a weight already"),
        ("2 0 1 -1 knapsackp 1 3 0 3 1 4 2 5 0", "the number of values"),
        (f"2 0 1 -1 knapsackp 1 1 0 {1 << 58} 0", "2\\*\\*57"),
        ("2 0 2 -1 knapsack 1 3 3", "wants two"),
    ],
)
def test_wrong_knapsacks_are_named(function: str, told: str) -> None:
    with pytest.raises(ProblemError, match=told):
        from_wcsp(f"wrong 3 2 1 10\n2 2 1\n{function}\n".encode())


def test_answers_to_the_users_own_file_are_read() -> None:
    program = from_opb(b"min: +3 x1 +2 x2 +4 x3 -1 x4 ;\n+1 x1 +1 x2 +1 x3 >= 1 ;\n+2 x1 +3 x3 +1 x4 >= 2 ;\n")
    assert len(program.vertices) == 5, "one more, which uses the rest of the limit"
    for text in ("v x1 -x2 -x3 x4", "s OPTIMUM FOUND\nv x1 -x2\nv -x3 x4", "1 0 0 1", "[1, 0, 0, 1]"):
        assert read_answer(text, program) == (1, 0, 0, 1, 0)
    with pytest.raises(InputError, match="1 variables have no value, x4 is the first"):
        read_answer("v x1 -x2 -x3", program)
    with pytest.raises(InputError, match="do not fit the limit"):
        read_answer("v -x1 -x2 -x3 x4", program)
    network = from_wcsp(b"t 3 2 1 100\n2 2 2\n3 0 1 2 5 2\n1 1 1 0\n0 0 0 3\n")
    assert read_answer("1 1 1", network) == (1, 1, 1, 7)
    with pytest.raises(InputError, match="2 choices for 4 vertices"):
        read_answer("1 1", network)


def two() -> SelectionProblem:
    tables = (np.array([[0, 9], [1 << 60, 0]]),)
    usages = (Usage(0, 0, 1, np.array([1, 5])), Usage(1, 0, 1, np.array([1, 5])))
    vertices = Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))
    return SelectionProblem("two", vertices, tables, (Edge(0, 1, 0),), usages, 9)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no choices are in it"),
        ("x_0_0 1", "vertex 1 'b' takes 0 choices"),
        ("x_0_0 1\nx_0_1 1\nx_1_0 1", "vertex 0 'a' takes 2 choices"),
        ("0 0 0", "3 choices for 2 vertices"),
        ("[0, 7]", "vertex 1 'b' has no choice 7"),
        ('{"cost": 3}', "no list of numbers"),
        ("[0, true]", "no list of numbers"),
        ("[0, ", "line 1"),
        ("1 0", "forbidden"),
        ("1 1", "do not fit the limit"),
        ("x_0_0 0.2\nx_1_0 0.9", "vertex 0 'a' takes 0 choices"),
    ],
)
def test_what_is_no_answer_is_named(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_answer(text, two())


def test_answers_of_every_kind_are_read() -> None:
    for text in (
        "[0, 1]",
        json.dumps({"solution": [0, 1]}),
        "0 1\n",
        "# Columns 4\nx_0_0 1\nx_0_1 -0\nx_1_0 1e-9\nx_1_1 0.999999999\ny_0_0_1 1",
        "(define-fun x0_0 () Bool\n  true)\n(define-fun x0_1 () Bool false)\n(define-fun x1_1 () Bool\n true)",
        "s OPTIMUM FOUND\nv x1 -x2\nv -x3 x4 -x5",
    ):
        assert read_answer(text, two()) == (0, 1), text


def test_what_another_solver_answers_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a plan: its problem for HiGHS, the answer to `solve`, which proves it."""
    plan, problem, file = (str(tmp_path / name) for name in ("plan.spz", "p.json", "p.mps"))
    assert (
        run(["plan", "mlp-unity", "--batch", "16", "--machine", "localhost:2", "-o", plan, "--work-limit", "1M"]) == 0
    )
    assert run(["export", plan, "--to", "json", "-o", problem]) == run(["export", plan, "--to", "mps", "-o", file]) == 0
    again = str(tmp_path / "again.mps")
    assert run(["export", problem, "--to", "mps", "-o", again]) == 0
    assert Path(file).read_bytes() == Path(again).read_bytes()
    loaded = load_selection_problem(Path(problem))
    said, text = highs(encode_problem(loaded, "mps"), tmp_path / "q.mps")
    (tmp_path / "answer").write_text(text)
    capsys.readouterr()
    assert run(["solve", problem, "--known", str(tmp_path / "answer"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "optimal" and found["cost"] == found["known_cost"] == said
    x = read_answer(text, loaded)
    for known in (x, tmp_path / "answer", str(tmp_path / "answer")):
        assert shardproof.solve(loaded, known=known, work_limit=1_000_000).cost == said
    with pytest.raises(InputError, match="choices for"):
        shardproof.solve(loaded, known=x[1:])
    (tmp_path / "answer").write_text("nothing")
    assert run(["solve", problem, "--known", str(tmp_path / "answer")]) == 3
    assert "no choices are in it" in capsys.readouterr().err


def test_the_search_is_never_worse_than_what_is_known() -> None:
    """One step of work finds nothing better than a good solution."""
    problem = graphs_of_all_kinds(7, largest=6, labels=4)
    optimum, x = brute_force(problem)
    assert x is not None and shardproof.solve(problem, known=x, work_limit=1).cost == optimum


def test_joint_plans_leave_with_all_their_programs_and_stages_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--batch", "16", "--machine", "localhost:2", "--work-limit", "1M", "-o"]
    model = "mlp-8192:layers=4,width=64"
    assert run(["plan", model, *words, str(tmp_path / "j.spz"), "--train", "sgd", "--joint"]) in (0, 5)
    assert run(["plan", model, *words, str(tmp_path / "s.spz"), "--train", "sgd", "--pipeline", "2:2"]) in (0, 5)
    capsys.readouterr()
    assert run(["export", str(tmp_path / "j.spz"), "--to", "lp", "-o", str(tmp_path / "j.lp"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    plan = load(tmp_path / "j.spz").bundle
    assert plan.certificate is not None and said["problem_sha256"] == plan.certificate.problem_sha256
    assert run(["export", str(tmp_path / "s.spz"), "--to", "lp", "-o", str(tmp_path / "s.lp")]) == 3
    assert "2 stages" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["lp", "mps", "smt2"])
def test_what_is_written_only_is_refused_by_its_name(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"p.{to}"
    file.write_text(encode_problem(two(), to).text)
    assert run(["solve", str(file)]) == 3
    assert "is written and not read" in capsys.readouterr().err


def test_a_network_may_have_the_name_of_another_format(tmp_path: Path) -> None:
    for name in ("minimum", "Maximize", "NAME"):
        assert load_selection_problem(written(tmp_path / "p.wcsp", f"{name} 1 2 1 9\n2\n1 0 0 1\n1 3\n")).name == name


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
