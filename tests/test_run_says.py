"""What `run` says of its own result: equal only where it is, with the values, the precision and the transport that
it used.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardproof.__main__ import run
from shardproof.backends.execution import array_files
from shardproof.backends.execution.comparison import TOLERANCE, difference, tolerance_of
from shardproof.backends.execution.launch import launch, mpi_available
from shardproof.backends.execution.provenance import made_up, of_run
from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, Role, Tensor
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building import stated
from shardproof.models.text import InputError


@pytest.fixture
def shardproof(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, words: bool = False) -> tuple[int, dict[str, object], str]:
        code = run([*arguments, *([] if words else ["--json"])])
        seen = capsys.readouterr()
        return code, json.loads(seen.out) if seen.out and not words else {"text": seen.out}, seen.err

    return call


def graph(dtype: str = "float64", *, constant: str = "constant.table", cast: str = "") -> Graph:
    """y = max over j of exp(x)[i, j] * table[j], split along j: a maximum goes between ranks."""
    tensors = [
        Tensor("x", (4, 8), dtype, Role.INPUT),
        Tensor(constant, (8,), dtype, Role.INPUT),
        Tensor("e", (4, 8), dtype),
        Tensor("p", (4, 8), cast or dtype),
        Tensor("y", (4,), cast or dtype),
    ]
    axes = (Axis("i", 4), Axis("j", 8))
    operators = [Operator("e", "multiply", axes, (access("x", "i", "j"), access(constant, "j")), access("e", "i", "j"))]
    operators.append(
        Operator("p", "cast", axes, (access("e", "i", "j"),), access("p", "i", "j"), (("dtype", cast),))
        if cast
        else Operator("p", "identity", axes, (access("e", "i", "j"),), access("p", "i", "j"))
    )
    operators.append(
        Operator("y", "max", (Axis("i", 4), Axis("j", 8, Combine.MAX)), (access("p", "i", "j"),), access("y", "i"))
    )
    return Graph("g", tuple(tensors), tuple(operators), ("y",)).check()


PLANS: dict[tuple[str, int], bytes] = {}


def planned(shardproof, made: Graph, ranks: int = 2) -> None:
    """A plan in the current folder, made once: split along j, so that NaN and infinities meet in a collective."""
    if (made.to_json(), ranks) not in PLANS:
        _plan(shardproof, made, ranks)
        PLANS[made.to_json(), ranks] = Path("g.spz").read_bytes()
    Path("g.spz").write_bytes(PLANS[made.to_json(), ranks])


def _plan(shardproof, made: Graph, ranks: int) -> None:
    Path("g.json").write_text(made.to_json())
    Path("s.json").write_text(json.dumps({"*": {"j": {"ranks": ranks}}}))
    code, _, err = shardproof(
        "plan", "g.json", "--machine", f"localhost:{ranks}", "--strategy", "s.json", "-o", "g.spz"
    )
    assert code in (0, 5), err


SPECIAL = {
    "nan": lambda x: x.__setitem__((1, 1), np.nan),
    "nan on another rank": lambda x: x.__setitem__((1, 6), np.nan),
    "inf": lambda x: x.__setitem__((0, 3), inf),
    "-inf": lambda x: x.__setitem__((2, slice(None)), -inf),
    "all": lambda x: x.__setitem__((slice(None), 2), [np.nan, inf, -inf, 1e308]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("how", "virtual"),
    [
        *((how, True) for how in sorted(SPECIAL)),
        *(pytest.param(how, False, marks=pytest.mark.mpi) for how in ("all", "nan on another rank")),
    ],
)
def test_not_a_number_is_a_result_like_others(how: str, virtual: bool, shardproof) -> None:
    if not virtual and not mpi_available():
        pytest.skip("mpi4py or mpiexec is not installed")
    planned(shardproof, graph())
    x = np.arange(32.0).reshape(4, 8)
    SPECIAL[how](x)
    np.savez("in.npz", **{"x": x, "constant.table": np.ones(8)})
    code, found, err = shardproof("run", "g.spz", "-n", "2", "--inputs", "in.npz", *(["--virtual"] if virtual else []))
    assert code == 0 and found["equal"] and found["difference"] == 0, err
    assert found["transport"] == ("virtual" if virtual else "mpi") and found["made_up"] is None


finite = hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(-10, 10))


@given(finite, st.integers(0, 5), st.sampled_from([np.nan, inf, -inf, 0.5]))
def test_one_wrong_element_is_seen(expected: np.ndarray, at: int, change: float) -> None:
    """NaN, either infinity or another number where there was something else: different, on whichever side it stands."""
    got = expected.copy()
    got[at % got.size] = got[at % got.size] + change
    assert difference(got, got) == 0
    assert difference(got, expected) > TOLERANCE["float64"] and difference(expected, got) > TOLERANCE["float64"]
    if change != 0.5:
        assert difference(got, expected) == inf


def test_other_kinds_of_numbers_are_compared_whole() -> None:
    assert difference(np.array([1 + 1j]), np.array([1 + 0j])) == 1 / 2, "the imaginary part counts"
    big = np.array([2**53 + 1, 0])
    assert difference(big, big - np.array([1, 0])) >= 1, "integers that one float stands for"
    assert difference(np.array([True]), np.array([False])) == 1
    assert difference(np.zeros(0), np.zeros(0)) == 0 and difference(np.zeros(1), np.zeros(2)) == inf
    assert difference(np.array([inf]), np.array([-inf])) == inf
    assert tolerance_of(["float64", "float32", "float16"]) == TOLERANCE["float16"]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (np.ones((4, 8), complex), "complex numbers (complex128)"),
        (np.ones((4, 8), np.complex64), "complex64"),
        (np.full((4, 8), "a"), "<U1"),
        (np.ones((4, 8), "V2"), "V2"),
        (np.ones((4, 8), "M8[s]"), "datetime64"),
        (np.ones((8, 4)), "has shape (8, 4), the plan needs (4, 8)"),
        (np.ones((4, 8), np.longdouble), "float128"),
        (np.ones((4, 8), object), "object"),
    ],
)
def test_inputs_that_cannot_be_executed_are_refused_by_name(value: np.ndarray, word: str, shardproof) -> None:
    planned(shardproof, graph())
    np.savez("in.npz", **{"x": value, "constant.table": np.ones(8)})
    code, _, err = shardproof("run", "g.spz", "-n", "2", "--virtual", "--inputs", "in.npz")
    assert code == 3 and "in.npz: array 'x'" in err and (word in err or word == "object")


def test_half_precision_inputs_run_as_they_are(shardproof) -> None:
    planned(shardproof, graph())
    np.savez(
        "in.npz",
        **{"x": np.linspace(-1, 1, 32, dtype=np.float16).reshape(4, 8), "constant.table": np.ones(8, np.float16)},
    )
    code, found, err = shardproof("run", "g.spz", "-n", "2", "--virtual", "--inputs", "in.npz")
    assert code == 0 and found["precision"] == {"computed": ["float16"], "model": ["float64"]}, err


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_precision_than_the_models_is_said(dtype: str, shardproof) -> None:
    planned(shardproof, graph(dtype))
    code, found, _ = shardproof("run", "g.spz", "-n", "2", "--virtual")
    assert code == 0 and found["precision"] == {"computed": ["float64"], "model": [dtype]}
    _, found, _ = shardproof("run", "g.spz", "-n", "2", "--virtual", words=True)
    assert f"computed in float64; the model states {dtype}" in str(found["text"])
    assert of_run(graph("float64", cast="bfloat16"), {"x": np.ones(1)}).computed == ("float64", "float32"), (
        "a cast to half is computed as float32"
    )


def test_constants_that_were_made_up_are_named(shardproof) -> None:
    planned(shardproof, graph())
    code, found, _ = shardproof("run", "g.spz", "-n", "2", "--virtual", "--seed", "3")
    assert code == 0 and found["made_up"] == {"seed": 3, "inputs": 1, "parameters": 0, "constants": ["constant.table"]}
    _, found, _ = shardproof("run", "g.spz", "-n", "2", "--virtual", words=True)
    assert "constants made up: 1 names, whose values the plan does not hold: constant.table" in str(found["text"])
    assert "values made up from seed 0: 1 inputs, 0 parameters" in str(found["text"]) and "transport virtual" in str(
        found["text"]
    )
    assert made_up(graph(constant="table"), 0).constants == ()


def onnx_with(size: int) -> Path:
    """x times a table that a Constant node holds, minus its scalar."""
    onnx = pytest.importorskip("onnx")
    table = np.linspace(-2, 3, size, dtype=np.float32).reshape(1, size) ** 3
    nodes = [
        onnx.helper.make_node("Constant", [], ["table"], value=onnx.numpy_helper.from_array(table)),
        onnx.helper.make_node("Mul", ["x", "table"], ["y"]),
    ]
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, size]) for n in ("x", "y")]
    made = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "tabled", info[:1], info[1:]), opset_imports=[onnx.helper.make_opsetid("", 17)]
    )
    onnx.save(made, "m.onnx")
    return Path("m.onnx")


def test_a_constant_of_the_program_is_content(shardproof) -> None:
    """Small: by value in the graph.  Large: an input whose values the plan holds.  What runs is what the file says."""
    onnx_with(12)
    assert shardproof("plan", "m.onnx", "--machine", "localhost:2", "-o", "m.spz")[0] == 0
    x = np.arange(48.0).reshape(4, 12)
    np.savez("in.npz", x=x)
    code, found, err = shardproof("run", "m.spz", "-n", "2", "--virtual", "--inputs", "in.npz", "-o", "out.npz")
    assert code == 0 and found["equal"], err
    with np.load("out.npz") as out:
        np.testing.assert_allclose(out["y"], x * np.linspace(-2, 3, 12, dtype=np.float32) ** 3, rtol=1e-6)
    assert shardproof("run", "m.spz", "-n", "2", "--virtual")[1]["made_up"]["constants"] == []  # type: ignore[index]
    Path("m.spz").unlink()
    size = stated.LIMIT + 1
    onnx_with(size)
    assert shardproof("plan", "m.onnx", "--machine", "localhost:2", "-o", "m.spz")[0] == 0
    x = np.linspace(-1, 1, 4 * size).reshape(4, size)
    np.savez("in.npz", x=x)
    code, found, err = shardproof("run", "m.spz", "-n", "2", "--virtual", "--inputs", "in.npz", "-o", "large.npz")
    assert code == 0 and found["equal"], err
    with np.load("large.npz") as out:
        np.testing.assert_allclose(out["y"], x * np.linspace(-2, 3, size, dtype=np.float32) ** 3, rtol=1e-6)
    assert shardproof("run", "m.spz", "-n", "2", "--virtual")[1]["made_up"]["constants"] == []  # type: ignore[index]


@given(
    hnp.arrays(st.sampled_from([np.float32, np.int64, np.bool_]), hnp.array_shapes(max_dims=3, max_side=4)),
    st.booleans(),
)
def test_constants_carried_are_the_values(array: np.ndarray, digits: bool) -> None:
    """What an importer states is what the graph computes, bit for bit, also where the shape was cut into digits."""
    shape = (*array.shape, 1) if digits else array.shape
    dtype = array.dtype.name
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(shape))
    names = [a.name for a in axes]
    before = Graph(
        "g",
        (Tensor("constant.c", shape, dtype, Role.INPUT, array.shape), Tensor("y", shape, dtype)),
        (Operator("y", "identity", axes, (access("constant.c", *names),), access("y", *names)),),
        ("y",),
    )
    after = stated.with_constants(before.check(), {"constant.c": array})
    assert [t.name for t in after.tensors if t.role is not Role.VALUE] == []
    np.testing.assert_array_equal(run_graph(after, {})["y"].reshape(array.shape), array)
    assert stated.with_constants(before, {}) is before


def test_a_saved_program_is_read_as_tensors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch unpickles what it cannot read as tensors unless it is told not to; the caller's own setting is back
    afterwards.
    """
    from shardproof.models.sources.torch import program

    for own in (None, "0"):
        monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
        if own is not None:
            monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", own)
        seen: list[str | None] = []

        def load(path: str, seen: list[str | None] = seen) -> None:
            seen.append(os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD"))
            raise ValueError("not tensors")

        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(export=SimpleNamespace(load=load)))
        with pytest.raises(program.TorchError, match="not tensors"):
            program.from_saved(Path("m.pt2"))
        assert seen == ["1"] and os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD") == own


def test_inputs_take_the_memory_that_the_plan_needs(tmp_path: Path) -> None:
    """Headers that promise other shapes, data that is longer or shorter, other members: said before anything is
    read.
    """
    path, good = tmp_path / "in.npz", graph()
    for text, data, word in [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 8), }", b"", "has shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 8), }", b"x" * 255, "255 bytes, not the 256"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 8), }", b"x" * 300, "more bytes than the 256"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (4, 8), }", b"", "elements of type object"),
        ("__import__('os')", b"", "not an array in NumPy's format"),
    ]:
        with zipfile.ZipFile(path, "w") as file:
            head = text.encode().ljust(117) + b"\n"
            file.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data)
            file.writestr("constant.table.npy", b"")
        with pytest.raises(InputError, match=word):
            array_files.read_inputs(path, good)
    np.savez(
        path,
        **{
            "x": np.asfortranarray(np.arange(32.0).reshape(4, 8)).astype(">f8"),
            "constant.table": np.ones(8),
            "beside": np.ones(3),
        },
    )
    read = array_files.read_inputs(path, good)
    assert (
        set(read) == {"x", "constant.table"}
        and np.array_equal(read["x"], np.arange(32.0).reshape(4, 8))
        and read["x"].dtype == np.dtype("float64")
    )


NAN = """
import numpy as np
from mpi4py import MPI
from shardproof.backends.transport.mpi import MpiTransport
from shardproof.backends.transport.requests import AllReduce, array_of
from shardproof.models.program.index import Combine

t, group = MpiTransport(MPI.COMM_WORLD), (0, 1, 2, 3)
for kind in (np.float64, np.float32):
    for who in group:
        x = np.full(3, float(t.rank), kind)
        x[1] = np.nan if t.rank == who else x[1]
        for combine, rest in ((Combine.MAX, 3), (Combine.MIN, 0)):
            for out in (t.all_reduce(group, x, combine), array_of(t.start(AllReduce(group, x, combine)).wait()), t.reduce_scatter(group, np.stack([x] * 4), combine)):
                assert np.array_equal(out, [rest, np.nan, rest], equal_nan=True), out
"""


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_a_maximum_between_ranks_hands_nan_on(tmp_path: Path) -> None:
    """From whichever rank it comes; MPI's own maximum loses it on some."""
    (tmp_path / "nan.py").write_text(NAN)
    launch([str(tmp_path / "nan.py")], 4, 60)
