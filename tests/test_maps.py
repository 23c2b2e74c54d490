"""Loop nests over maps, `for i, j in dace.map[M, N]:`, are what Python's loops compute, on one process and on ranks.

The oracle is the function itself, whose maps are loops outside of a trace.  What turns of a map may not do to each
other is refused with file and line, and so is what has no translation.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardproof
from shardproof import dace
from shardproof.__main__ import run
from shardproof.backends.execution.reference import run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import GraphError
from shardproof.models.program.random_numbers import draw_numbers
from shardproof.models.sources.building.python_file import load_object
from shardproof.models.sources.numpy.original import original_of
from shardproof.models.sources.numpy.recorder import TraceError
from shardproof.models.sources.numpy.trace import Traced, trace

A, B, V = dace.float64[6, 5], dace.float64[5, 6], dace.float64[6]


def both(program: Callable[..., object], **given_values: np.ndarray) -> Traced:
    """The trace, whose results on one process are those of the function."""
    found = trace(program)
    rng = np.random.default_rng(5)
    values = {}
    for name in found.arguments:
        t = found.graph.tensor(name)
        drawn = rng.standard_normal(t.source_shape or t.shape).astype(t.dtype)
        values[name] = given_values.get(name, drawn)
    digits = {n: v.reshape(found.graph.tensor(n).shape) for n, v in values.items()}
    ours = run_graph(found.graph, digits)
    theirs = original_of(program, None, found.written).run({n: v.copy() for n, v in values.items()})
    for (name, shape), want in zip(found.results, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(ours[name]).reshape(shape), want, rtol=1e-12, atol=1e-12)
    return found


@dace
def elements(a: A, b: B, v: V):
    out = np.zeros([6, 5])
    for i, j in dace.map[6, 5]:
        out[i, j] = a[i, j] * v[i] + np.exp(b[j, i]) - 2.0
    return out


@dace
def stencil(a: dace.float64[9, 8]):
    out = a * 1.0
    for i, j in dace.map[1:8, 1:7]:
        out[i, j] = 0.25 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])
    return out


@dace
def contraction(a: A, b: B):
    out = np.zeros([6, 6])
    for i, j, k in dace.map[6, 6, 5]:
        out[i, j] += a[i, k] * b[k, j]
    return out


@dace
def nested(a: A, b: B):
    out = np.empty([6, 6])
    for i in dace.map[0:6]:
        for j in dace.map[0:6]:
            out[i, j] = 1.0
            for k in dace.map[0:5]:
                out[i, j] -= a[i, k] * b[k, j]
            out[i, j] = out[i, j] * 2.0
    return out


@dace
def rows(a: A, b: B):
    out, norm = np.zeros([6, 6]), np.zeros(6)
    for i in dace.map[6]:
        norm[i] = np.sqrt(np.sum(a[i, :] * a[i, :]))
        out[i, :] = a[i, :] @ b
    for i, j in dace.map[6, 6]:
        out[i, j] = a[i, :] @ b[:, j] / norm[i] + out[i][j]
    return out


@dace
def values(v: V):
    out = np.zeros([6, 3])
    for i, j in dace.map[6, 0:3:1]:
        out[i, j] = np.where(i >= 3, v[i] * i, 2 * j + 1)
    return out


@dace
def totals(a: A):
    s, rest = np.zeros(1), np.zeros(6)
    for i in dace.map[6]:
        s[0] += 1.5
        for j in dace.map[5]:
            s[0] += a[i, j]
            rest[i] += a[i, j] * a[i, j]
    return s, rest


@dace
def strided(v: dace.float64[12]):
    out = np.zeros(6)
    for i in dace.map[0:6]:
        out[i] = v[2 * i + 1]
    for i in dace.map[1:6:2]:
        out[0] += v[i]
    return out


@dace
def window(v: dace.float64[12], w: dace.float64[3]):
    out = np.zeros(10)
    for i, k in dace.map[10, 3]:
        out[i] += v[i + k] * w[k]
    return out


@dace
def written_argument(a: A, v: V):
    for i in dace.map[6]:
        v[i] = v[i] + a[i, 0]


@pytest.mark.parametrize(
    "program", [elements, stencil, contraction, nested, rows, values, totals, strided, window, written_argument]
)
def test_equal_to_the_loops(program: Callable[..., object]) -> None:
    both(program)


def test_a_product_that_is_summed_is_one_contraction() -> None:
    """And makes no array over all three loops."""
    (op,) = trace(contraction).graph.operators
    assert op.function == "product" and [a.extent for a in op.axes] == [6, 6, 5]
    assert [op.function for op in trace(window).graph.operators] == ["product"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_sparse_rows_of_any_kind(data: st.DataObject) -> None:
    """Empty rows, entries in front of the first row and behind the last, values of the row beside those of entries."""
    m, n, k = (data.draw(st.integers(1, x)) for x in (6, 5, 12))
    pointers = np.array(sorted(data.draw(st.lists(st.integers(0, k), min_size=m + 1, max_size=m + 1))))
    columns = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=k, max_size=k)))

    @dace
    def product(p: dace.int64[m + 1], col: dace.int64[k], val: dace.float64[k], x: dace.float64[n], s: dace.float64[m]):
        out = np.zeros(m)
        for i in dace.map[0:m]:
            for j in dace.map[p[i] : p[i + 1]]:
                out[i] += val[j] * x[col[j]] * s[i]
        return out

    both(product, p=pointers, col=columns)


# --- what is refused ------------------------------------------------------------------------------------------------


def _race(v):
    out = v * 1.0
    for i in dace.map[1:6]:
        out[i] = out[i - 1] + v[i]
    return out


def _overwrite(a):
    out = np.zeros(6)
    for i, j in dace.map[6, 5]:
        out[i] = a[i, j]
    return out


def _part_of_a_sum(a):
    out, seen = np.zeros(6), np.zeros([6, 5])
    for i, j in dace.map[6, 5]:
        out[i] += a[i, j]
        seen[i, j] = out[i]
    return out, seen


def _after_the_map(v):
    out = np.zeros(6)
    for i in dace.map[6]:
        t = v[i]
    for i in dace.map[6]:
        out[i] = t
    return out


def _left(v):
    out = np.zeros(6)
    for i in dace.map[6]:
        out[i] = v[i]
        break
    return out


def _condition(v):
    out = np.zeros(6)
    for i in dace.map[6]:
        if v[i] > 0:
            out[i] = 1.0
    return out


def _triangle(a):
    out = np.zeros(6)
    for i in dace.map[6]:
        for j in dace.map[0:i]:
            out[i] += a[i, j]
    return out


def _outside(v):
    out = np.zeros(6)
    for i in dace.map[6]:
        out[i] = v[i + 1]
    return out


def _function(a):
    out = np.zeros(6)
    for i in dace.map[6]:
        out[i] = np.median(a[i, :])
    return out


def _bounds(v, p):
    out = np.zeros(6)
    for i in dace.map[6]:
        for j in dace.map[p[i] : p[i] + 2]:
            out[i] += v[j]
    return out


def _scattered(v, p):
    out = np.zeros(6)
    for i in dace.map[6]:
        out[p[i]] = v[i]
    return out


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (_race, "elements of an array that other iterations write"),
        (_overwrite, "every iteration of 1 loops writes the same element"),
        (_part_of_a_sum, "reads a sum that is not finished"),
        (_after_the_map, "used after the map has ended"),
        (_left, "left before its end"),
        (_condition, "use np.where"),
        (_triangle, "a bound of a map depends on another loop"),
        (_outside, "indices 1 to 6 of a map leave dimension 0, which has 6 elements"),
        (_function, "np.median of elements of a map is not supported"),
        (_bounds, "neighbours of one array are supported"),
        (_scattered, "a write inside a map where the data say"),
    ],
)
def test_refused_with_its_line(program: Callable[..., object], words: str) -> None:
    shapes = {"a": A, "v": V, "p": dace.int64[7]}
    names = program.__code__.co_varnames[: program.__code__.co_argcount]
    with pytest.raises(TraceError, match=words):
        trace(dace(program), "refused", {n: shapes[n] for n in names})


@pytest.mark.parametrize("schedule", [3, {"ranks": 0}, ({"ranks": 2},), {"ranks": "4"}])
def test_a_schedule_that_is_none(schedule: object) -> None:
    with pytest.raises(TraceError, match="a schedule of a map over 2 loops"):
        dace.map[4, 4] @ schedule


# --- random numbers -------------------------------------------------------------------------------------------------


@dace
def noise():
    np.random.seed(11)
    a, b = np.random.rand(12, 8), np.random.normal(2.0, 3.0, (8,))
    c = a + b
    return c, np.random.uniform(-1.0, 1.0, 12)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_same_numbers_on_any_ranks(ranks: int) -> None:
    found = trace(noise)
    whole = original_of(noise, None, ()).run({})
    for axis in ("i0", "i1"):
        strategy = Strategy((Rule("c", ((axis, (("0", ranks),)),)),))
        done = propagate(found.graph, load_machine(f"localhost:{ranks}"), strategy)
        ours = run_virtual(lower(found.graph, (ranks,), done.choices), {}).outputs
        for (name, _), want in zip(found.results, whole, strict=True):
            np.testing.assert_array_equal(ours[name], want)


def test_numbers_look_random() -> None:
    """Mean, deviation and neighbours of 100,000 numbers, within five deviations of theirs; other seeds and draws give
    others."""
    index = np.arange(100_000)
    u = draw_numbers(np, "uniform", 0, 0, index)
    z = draw_numbers(np, "normal", 0, 0, index)
    assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * 1e5) and abs(z.mean()) < 5 / np.sqrt(1e5)
    assert abs(z.std() - 1) < 5 / np.sqrt(2e5) and u.min() >= 0 and u.max() < 1
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(u[lag:], u[:-lag])[0, 1]) < 5 / np.sqrt(1e5)
    others = [draw_numbers(np, "uniform", *pair, index) for pair in ((1, 0), (0, 1), (1, 1))]
    assert all(abs(np.corrcoef(u, x)[0, 1]) < 5 / np.sqrt(1e5) for x in others)
    counts = np.histogram(u, 64, (0, 1))[0]
    assert ((counts - 1e5 / 64) ** 2 / (1e5 / 64)).sum() < 63 + 5 * np.sqrt(126)


def test_numpy_is_left_as_it_was() -> None:
    before = np.zeros, np.random.rand, np.random.seed
    trace(noise)
    with pytest.raises((TraceError, GraphError)):
        trace(dace(_race), "refused", {"v": V})
    assert (np.zeros, np.random.rand, np.random.seed) == before
    assert noise()[0].shape == (12, 8)


@pytest.mark.parametrize(("seed", "words"), [(-1, "a seed is an integer"), (1 << 53, "a seed"), (1.5, "a seed")])
def test_seeds_that_are_none(seed: object, words: str) -> None:
    @dace
    def drawn():
        np.random.seed(seed)
        return np.random.rand(3)

    with pytest.raises(TraceError, match=words):
        trace(drawn)


# --- schedules in the program ---------------------------------------------------------------------------------------

SCHEDULED = """
import numpy as np
import shardproof
from shardproof import dace

@dace
def product(a: dace.float64[8, 4], b: dace.float64[4, 6]):
    c = np.zeros([8, 6])
    for i, j, k in dace.map[8, 6, 4] @ ({"ranks": 2}, {}, {"ranks": 2}):
        c[i, j] += a[i, k] * b[k, j]
    return c
"""


def test_a_schedule_in_the_program_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prog.py").write_text(SCHEDULED)
    plan, model = str(tmp_path / "p.spz"), f"{tmp_path}/prog.py:product"
    planned = ["plan", model, "--machine", "localhost:4", "-o", plan, "--force"]
    assert run([*planned, "--no-compare"]) == 5  # it is given, and a better one exists
    assert "schedules given for 1 operators" in capsys.readouterr().out
    assert run(["explain", plan, "--op", "product", "--symbolic"]) == 0
    assert "on a process grid of i0 2, i2 2" in capsys.readouterr().out
    assert run([*planned, "--overlap"]) == 3
    assert "--overlap searches others" in capsys.readouterr().err
    (tmp_path / "other.json").write_text('{"product": {"i1": {"ranks": 2}}}')
    assert run([*planned, "--strategy", str(tmp_path / "other.json")]) in (0, 5)
    assert run(["explain", plan, "--op", "product", "--symbolic"]) == 0
    assert "on a process grid of i1 2" in capsys.readouterr().out
    found = shardproof.plan(model, machine="localhost:4", compare=False)
    grid = found.placements["product"]
    assert dict(zip(grid.axes, grid.matrix, strict=False)) == {"i0": (2,), "i1": (1,), "i2": (2,)}


def test_many_sparse_maps_keep_their_own_rows(tmp_path: Path) -> None:
    """Rows of one map are not those of another whose loop took the place of its own in memory."""
    calls = [f"    o{k} = np.zeros(6)\n    sums(p{k}, val, o{k})\n" for k in range(20)]
    (tmp_path / "many.py").write_text(
        "import numpy as np\nfrom shardproof import dace\n\ndef sums(p, val, out):\n    for i in dace.map[6]:\n"
        "        for j in dace.map[p[i] : p[i + 1]]:\n            out[i] += val[j]\n\n@dace\ndef many("
        + "".join(f"p{k}: dace.int64[7], " for k in range(20))
        + "val: dace.float64[20]):\n"
        + "".join(calls)
        + f"    return [{', '.join(f'o{k}' for k in range(20))}]\n"
    )
    rng = np.random.default_rng(0)
    rows, val = [np.sort(rng.integers(0, 21, 7)) for _ in range(20)], rng.normal(size=20)
    traced = trace(load_object(tmp_path / "many.py", "many"), {})  # type: ignore[arg-type]
    found = run_graph(traced.graph, {"val": val} | {f"p{k}": p for k, p in enumerate(rows)})
    for p, name in zip(rows, traced.graph.results, strict=True):
        np.testing.assert_allclose(found[name], [val[p[i] : p[i + 1]].sum() for i in range(6)], atol=1e-12)


def test_maps_that_are_too_large_to_be_compared_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One turn is recorded; where nothing shows that the others do the same, nothing is planned unless it is said so."""
    (tmp_path / "big.py").write_text(
        "from shardproof import dace\nN = 1000\n@dace\ndef big(a: dace.float64[N, N], b: dace.float64[N, N], c: dace.float64[N, N]):\n"
        "    for i, j, k in dace.map[N, N, N]:\n        c[i, j] += a[i, k] * b[k, j]\n"
    )
    words = ["import", f"{tmp_path / 'big.py'}:big", "-o", str(tmp_path / "g.json")]
    assert run(words) == 3 and "--no-compare" in capsys.readouterr().err
    assert run([*words, "--no-compare"]) == 0
