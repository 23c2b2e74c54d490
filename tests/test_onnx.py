"""ONNX import: the nine real graphs of the onnx wheel, every operator against the reference evaluator, and refusals.

The real graphs are files that no one here wrote; their shapes are compared with ONNX's own shape inference, their work
with published figures, three of them element by element.
"""

from __future__ import annotations

import random
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_oracle import evaluate

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, Role, UnsupportedOperators
from shardproof.models.program.index import Affine
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.load import load_model
from shardproof.models.sources.onnx.importer import Imported, OnnxError, import_onnx, load_onnx, supported_operators

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
# multiply-adds in millions at batch 1, parameters in millions: published figures of the same files' networks
GRAPHS = {
    "bvlc_alexnet": (655, 61.0),
    "densenet121": (2834, 8.1),
    "inception_v1": (1432, 7.0),
    "inception_v2": (2019, 11.2),
    "resnet50": (4089, 25.6),
    "shufflenet": (124.7, 1.4),
    "squeezenet": (349, 1.2),
    "vgg19": (19632, 143.7),
    "zfnet512": (1482, 87.3),
}
OPAQUE = {"bvlc_alexnet": 1, "shufflenet": 5}
"""Views that stay as opaque copies: a digit meets a window (LRN), a concatenation at another boundary, or 4 and 34
channels.
"""


def light(name: str) -> Path:
    return LIGHT / f"light_{name}.onnx"


def graph_of(
    nodes: list[onnx.NodeProto],
    shapes: dict[str, list[int | str]],
    weights: dict[str, np.ndarray],
    outputs: list[str],
    opset: int,
) -> onnx.ModelProto:
    types = {n: TensorProto.INT64 if n == "ids" else TensorProto.FLOAT for n in shapes}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, types[n], s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = {o.name: o for o in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output}
    for o in model.graph.output:  # the checker wants a shape, though it may be a wrong one
        found = inferred[o.name].type.tensor_type
        o.CopyFrom(
            inferred[o.name]
            if found.HasField("shape")
            else helper.make_tensor_value_info(o.name, TensorProto.FLOAT, [1])
        )
    return model


def save(folder: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def compare(found: Imported, model: onnx.ModelProto, values: list[str], tolerance: float = 1e-9) -> None:
    """Our values against the oracle's, in float64.  Where a transpose was removed only the elements are compared."""
    graph = found.graph
    inputs = random_inputs(graph, 0)
    ours = run_graph(graph, inputs, keep={found.values[v] for v in values})
    feed = {}
    for n, a in inputs.items():
        shape = graph.tensor(n).source_shape
        feed[n] = a.reshape(graph.tensor(n).shape if shape is None else shape)
    outputs = {o.name for o in model.graph.output}
    for v, theirs in zip(values, evaluate(model, feed, values), strict=True):
        mine = ours[found.values[v]]
        exact = v in outputs or np.allclose(mine.reshape(-1), theirs.reshape(-1))
        a, b = (
            (mine.reshape(-1), theirs.reshape(-1)) if exact else (np.sort(mine, axis=None), np.sort(theirs, axis=None))
        )
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(theirs).max(), err_msg=v)


def multiply_adds(graph: Graph) -> int:
    return sum(prod(a.extent for a in op.axes) for op in graph.operators if op.kind is NodeKind.CONTRACT)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_real_graphs_have_the_published_work_at_both_batches(name: str) -> None:
    one, many = import_onnx(light(name)), import_onnx(light(name), batch=256)
    million, parameters = GRAPHS[name]
    assert multiply_adds(one.graph) / 1e6 == pytest.approx(million, rel=2e-3)
    assert multiply_adds(many.graph) == 256 * multiply_adds(one.graph)
    assert sum(t.elements for t in one.graph.tensors if t.role is Role.PARAMETER) / 1e6 == pytest.approx(
        parameters, abs=0.06
    )
    assert len(one.digits.opaque) == len(many.digits.opaque) == OPAQUE.get(name, 0)
    assert [op.name for op in one.graph.operators] == [op.name for op in many.graph.operators]
    assert {t.shape[0] for t in many.graph.tensors if t.role is not Role.PARAMETER} == {256}
    assert Graph.from_json(many.graph.to_json()) == many.graph
    nodes = {n.name for n in onnx.load(str(light(name))).graph.node}
    assert all(found in nodes for found in one.where.values()) and set(one.where) == {
        op.name for op in one.graph.operators
    }


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("batch", [1, 7])
def test_shapes_are_those_of_onnx_shape_inference(name: str, batch: int) -> None:
    model = onnx.load(str(light(name)))
    if batch != 1:
        rebatch(model, batch)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found, checked = import_onnx(light(name), batch), 0
    for info in [*inferred.value_info, *inferred.output]:
        theirs = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if info.name in found.values and theirs and 0 not in theirs:
            t = found.graph.tensor(found.values[info.name])
            assert t.elements == prod(theirs), info.name
            if t.source_shape is None:  # not in digits: dimension by dimension, up to views
                assert [n for n in t.shape if n > 1] == [n for n in theirs if n > 1] or info.name not in t.name, (
                    info.name
                )
            checked += 1
    assert checked >= 0.9 * len(found.graph.operators)


def rebatch(model: onnx.ModelProto, batch: int) -> None:
    """The same model exported with another batch: what the importer must come to by itself."""
    stored = {t.name: t for t in model.graph.initializer}
    for i in model.graph.input:
        if i.name not in stored and len(i.type.tensor_type.shape.dim) == 4:
            i.type.tensor_type.shape.dim[0].dim_value = batch
    for n in model.graph.node:
        if n.op_type == "Reshape":
            target = numpy_helper.to_array(stored[n.input[1]]).copy()
            target[0] = batch if target[0] == 1 else target[0]  # one reshape is of a weight
            stored[n.input[1]].CopyFrom(numpy_helper.from_array(target, n.input[1]))
    for o in model.graph.output:
        o.type.tensor_type.shape.dim[0].dim_value = batch


@pytest.mark.parametrize(
    ("name", "batch"), [("shufflenet", 1), ("shufflenet", 2), ("squeezenet", 1), ("bvlc_alexnet", 1)]
)
def test_real_graphs_compute_what_the_oracle_computes(name: str, batch: int) -> None:
    model = onnx.load(str(light(name)))
    if batch != 1:
        rebatch(model, batch)
    found = import_onnx(light(name), batch)
    values = [n.output[0] for n in model.graph.node if n.op_type != "ConstantOfShape" and n.output[0] in found.values]
    assert len(values) >= 20
    compare(found, model, values)


def node(kind: str, inputs: str = "x", output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), output.split(), **attributes)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


IMAGE = [2, 4, 7, 6]
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, list[int | str]], dict[str, np.ndarray], int]] = {
    "conv": (
        [node("Conv", "x w b", pads=[1, 0, 2, 1], strides=[2, 1])],
        {"x": IMAGE},
        {"w": ones(6, 4, 3, 2), "b": ones(6)},
        13,
    ),
    "conv dilated": (
        [node("Conv", "x w", dilations=[2, 3], pads=[2, 2, 2, 2])],
        {"x": IMAGE},
        {"w": ones(3, 4, 2, 2)},
        13,
    ),
    "conv grouped": (
        [node("Conv", "x w b", group=2, pads=[1, 1, 1, 1])],
        {"x": IMAGE},
        {"w": ones(6, 2, 3, 3), "b": ones(6)},
        13,
    ),
    "conv depthwise": ([node("Conv", "x w", group=4)], {"x": IMAGE}, {"w": ones(4, 1, 3, 3)}, 13),
    "conv depthwise twice": ([node("Conv", "x w", group=4)], {"x": IMAGE}, {"w": ones(8, 1, 3, 3)}, 13),
    "conv 1x1 strided": ([node("Conv", "x w", strides=[2, 2])], {"x": IMAGE}, {"w": ones(5, 4, 1, 1)}, 13),
    "conv same upper": (
        [node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 2])],
        {"x": IMAGE},
        {"w": ones(5, 4, 2, 3)},
        13,
    ),
    "conv same lower": ([node("Conv", "x w", auto_pad="SAME_LOWER")], {"x": IMAGE}, {"w": ones(5, 4, 2, 2)}, 13),
    "conv valid": ([node("Conv", "x w", auto_pad="VALID")], {"x": IMAGE}, {"w": ones(5, 4, 3, 3)}, 13),
    "conv 1d": ([node("Conv", "x w", pads=[1, 1])], {"x": [2, 4, 9]}, {"w": ones(5, 4, 3)}, 13),
    "conv 3d": ([node("Conv", "x w")], {"x": [2, 2, 4, 3, 5]}, {"w": ones(3, 2, 2, 2, 2)}, 13),
    "conv, then batch norm": (
        [
            node("Conv", "x w", "c"),
            node("BatchNormalization", "c g b m v", epsilon=1e-3),
        ],
        {"x": IMAGE},
        {"w": ones(5, 4, 3, 3), "g": ones(5), "b": ones(5), "m": ones(5), "v": ones(5)},
        13,
    ),
    "max pool": ([node("MaxPool", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])], {"x": IMAGE}, {}, 13),
    "max pool ceil": ([node("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], {"x": [1, 2, 7, 7]}, {}, 13),
    "average pool": ([node("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {"x": IMAGE}, {}, 13),
    "average pool with padding": (
        [node("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        {"x": IMAGE},
        {},
        13,
    ),
    "global average": ([node("GlobalAveragePool")], {"x": IMAGE}, {}, 13),
    "global maximum": ([node("GlobalMaxPool")], {"x": IMAGE}, {}, 13),
    "lrn": ([node("LRN", size=3, alpha=0.5, beta=0.875, bias=2.0)], {"x": [2, 7, 3, 3]}, {}, 13),
    "lrn even": ([node("LRN", size=4, alpha=0.5)], {"x": [2, 7, 3, 3]}, {}, 13),
    "gemm": ([node("Gemm", "x w b", transB=1)], {"x": [3, 8]}, {"w": ones(5, 8), "b": ones(5)}, 13),
    "gemm transposed": (
        [node("Gemm", "x w b", transA=1, alpha=0.5, beta=2.0)],
        {"x": [8, 3]},
        {"w": ones(8, 5), "b": ones(3, 1)},
        13,
    ),
    "matmul": ([node("MatMul", "x w")], {"x": [2, 3, 8]}, {"w": ones(8, 5)}, 13),
    "matmul broadcast": ([node("MatMul", "x z")], {"x": [2, 1, 3, 8], "z": [4, 8, 5]}, {}, 13),
    "matmul vector": ([node("MatMul", "x w")], {"x": [2, 3, 8]}, {"w": ones(8)}, 13),
    "broadcast": ([node("Add", "x w")], {"x": [2, 3, 1, 5]}, {"w": ones(3, 4, 1)}, 13),
    "sum of three": ([node("Sum", "x z x")], {"x": [2, 3], "z": [3]}, {}, 13),
    "arithmetic": (
        [node("Sub", "x w", "a"), node("Mul", "a a", "b"), node("Div", "b w")],
        {"x": [2, 3]},
        {"w": ones(3)},
        13,
    ),
    "scalars": (
        [node("Constant", "", "k", value_float=8.0), node("Div", "x k", "a"), node("Mul", "k a")],
        {"x": [2, 3]},
        {},
        13,
    ),
    "activations": (
        [node("Tanh", "x", "a"), node("Sigmoid", "a", "b"), node("Relu", "b", "c"), node("Exp", "c")],
        {"x": [2, 3]},
        {},
        13,
    ),
    "gelu": ([node("Gelu")], {"x": [2, 3]}, {}, 20),
    "clip to relu": ([node("Clip", "x low")], {"x": [4, 5]}, {"low": np.float32(0)}, 13),
    "concat": ([node("Relu", "x", "r"), node("Concat", "r z x", axis=1)], {"x": IMAGE, "z": [2, 3, 7, 6]}, {}, 13),
    "concat, last axis": ([node("Concat", "x x", axis=-1)], {"x": [2, 5]}, {}, 13),
    "split": (
        [node("Split", "x", "a b c", axis=1), node("Sub", "a c", "d"), node("Mul", "d b")],
        {"x": [2, 12, 3]},
        {},
        11,
    ),
    "split uneven": ([node("Split", "x s", "a y", axis=1)], {"x": [2, 12]}, {"s": ints(5, 7)}, 13),
    "slice": (
        [node("Slice", "x s e a t")],
        {"x": IMAGE},
        {"s": ints(1, -5), "e": ints(99, -1), "a": ints(1, 2), "t": ints(2, 1)},
        13,
    ),
    "pad": ([node("Pad", "x p")], {"x": IMAGE}, {"p": ints(0, 0, 1, 2, 0, 1, 0, 3)}, 13),
    "flatten": (
        [node("Flatten", "x", "f", axis=1), node("Gemm", "f w", transB=1)],
        {"x": IMAGE},
        {"w": ones(5, 168)},
        13,
    ),
    "flatten in the middle": ([node("Flatten", axis=2)], {"x": IMAGE}, {}, 13),
    "reshape": ([node("Reshape", "x s", "r"), node("Relu", "r")], {"x": IMAGE}, {"s": ints(0, -1, 3)}, 13),
    "squeeze": (
        [node("Squeeze", "x", "a", axes=[1, 3]), node("Unsqueeze", "a", axes=[0, 2])],
        {"x": [3, 1, 5, 1]},
        {},
        11,
    ),
    "squeeze by input": (
        [node("Squeeze", "x q", "a"), node("Unsqueeze", "a q")],
        {"x": [3, 1, 5, 1]},
        {"q": ints(1, -1)},
        13,
    ),
    "channel shuffle": (
        [
            node("Reshape", "x s", "a"),
            node("Transpose", "a", "t", perm=[0, 2, 1, 3]),
            node("Reshape", "t e", "r"),
            node("Conv", "r w", group=4),
        ],
        {"x": [2, 8, 5]},
        {"s": ints(2, 2, 4, 5), "e": ints(2, 8, 5), "w": ones(4, 2, 3)},
        13,
    ),
    "shape arithmetic": (
        [
            node("Shape", "x", "s"),
            node("Constant", "", "zero", value=numpy_helper.from_array(ints(0))),
            node("Gather", "s zero", "n", axis=0),
            node("Constant", "", "rest", value=numpy_helper.from_array(ints(-1))),
            node("Concat", "n rest", "t", axis=0),
            node("Reshape", "x t"),
        ],
        {"x": IMAGE},
        {},
        13,
    ),
    "attention": (
        [
            node("MatMul", "x w", "p"),
            node("Split", "p", "q k v", axis=2),
            *(node("Reshape", f"{i} s", f"{i}r") for i in "qkv"),
            node("Transpose", "qr", "qt", perm=[0, 2, 1, 3]),
            node("Transpose", "kr", "kt", perm=[0, 2, 3, 1]),
            node("Transpose", "vr", "vt", perm=[0, 2, 1, 3]),
            node("MatMul", "qt kt", "a"),
            node("Softmax", "a", "m", axis=3),
            node("MatMul", "m vt", "c"),
            node("Transpose", "c", "ct", perm=[0, 2, 1, 3]),
            node("Reshape", "ct e", "f"),
            node("MatMul", "f o"),
        ],
        {"x": [2, 5, 12]},
        {"w": ones(12, 36), "s": ints(2, 5, 3, 4), "e": ints(2, 5, 12), "o": ones(12, 7)},
        11,
    ),
    "softmax before 13": ([node("Softmax")], {"x": [2, 3, 2, 2]}, {}, 11),
    "softmax before 13, axis 2": ([node("Softmax", axis=2)], {"x": [2, 3, 2, 2]}, {}, 11),
    "softmax": ([node("Softmax")], {"x": [2, 3, 4]}, {}, 13),
    "layer norm": ([node("LayerNormalization", "x g b", axis=-1)], {"x": [2, 3, 4]}, {"g": ones(4), "b": ones(4)}, 17),
    "reduce": (
        [node("ReduceMean", "x", "a", axes=[-1], keepdims=0), node("ReduceMax", "a", axes=[1])],
        {"x": [2, 3, 4]},
        {},
        13,
    ),
    "embedding": ([node("Gather", "w ids", "e"), node("Relu", "e")], {"ids": [2, 5]}, {"w": ones(7, 4)}, 13),
    "dropout and identity": (
        [node("Dropout", "x", "d"), node("Identity", "d", "i"), node("Relu", "i")],
        {"x": [2, 3]},
        {},
        13,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_compute_what_the_oracle_computes(case: str, tmp_path: Path) -> None:
    nodes, shapes, weights, opset = CASES[case]
    model = graph_of(nodes, shapes, weights, ["y"], opset)
    compare(
        import_onnx(save(tmp_path, model)), model, ["y"], 1e-6 if case == "gelu" else 1e-9
    )  # the oracle's erf is float32


def test_every_listed_operator_is_covered_by_a_case() -> None:
    covered = {n.op_type for nodes, *_ in CASES.values() for n in nodes} | {"ConstantOfShape"}
    same = {
        "Neg",
        "Erf",
        "Sqrt",
        "ReduceSum",
        "ReduceMin",
        "ConstantFill",
        "Cast",
    }  # rows of a table whose neighbours are covered
    assert set(supported_operators()) - covered == same


def test_negative_padding_crops(tmp_path: Path) -> None:
    """The oracle cannot do it (np.pad refuses negative widths)."""
    graph = load_onnx(
        save(tmp_path, graph_of([node("Pad", "x p")], {"x": [3, 5]}, {"p": ints(0, -2, 1, 1)}, ["y"], 13))
    )
    x = np.arange(15.0).reshape(3, 5)
    np.testing.assert_array_equal(run_graph(graph, {"x": x})["y"], np.pad(x, ((0, 1), (0, 1)))[:, 2:])


def test_attention_is_recognised_where_it_is_asked_for(tmp_path: Path) -> None:
    nodes, shapes, weights, opset = CASES["attention"]
    path = save(tmp_path, graph_of(nodes, shapes, weights, ["y"], opset))
    before, after = load_model(str(path)), load_model(str(path), attention="operator")
    assert "softmax" in {op.function for op in before.operators}
    assert [op.function for op in after.operators if op.function != "copy"] == ["product", "attention", "product"]
    values = random_inputs(before, 0)
    for x, y in zip(run_graph(before, values).values(), run_graph(after, values).values(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_attention_written_flat_becomes_attention_over_heads(tmp_path: Path) -> None:
    """Fused projection, reshapes and transposes disappear: what is left is the zoo's form, with a digit per
    projection.
    """
    nodes, shapes, weights, opset = CASES["attention"]
    found = import_onnx(save(tmp_path, graph_of(nodes, shapes, weights, ["y"], opset)))
    assert found.graph.tensor("w").shape == (12, 3, 3, 4) and found.graph.tensor("o").shape == (3, 4, 7)
    assert [op.function for op in found.graph.operators] == [
        "product",
        "copy",
        "copy",
        "copy",
        "product",
        "softmax",
        "product",
        "product",
    ]
    assert found.digits.opaque == found.digits.affine == ()


def test_alexnets_flatten_is_a_contraction_over_channels_rows_columns() -> None:
    graph = load_onnx(light("vgg19"), batch=8)
    fc6 = next(op for op in graph.operators if op.kind is NodeKind.CONTRACT and len(op.axes) == 5)
    assert [a.extent for a in fc6.axes] == [8, 4096, 512, 7, 7]
    weight = graph.tensor(fc6.inputs[1].tensor)
    assert (weight.shape, weight.source_shape) == ((4096, 512, 7, 7), (4096, 25088))


def test_grouped_convolution_reads_a_flat_dimension_in_digits() -> None:
    found = import_onnx(light("bvlc_alexnet"))
    assert found.digits.affine == ("n4.split",)
    assert found.graph.operator("n4.split").inputs[0].index[1] == Affine((("d1", 48), ("d2", 1)))


def test_imports_are_reproducible() -> None:
    assert load_onnx(light("shufflenet"), 256).sha256() == load_onnx(light("shufflenet"), 256).sha256()


# refusals


def test_all_unsupported_operators_are_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        node("Selu", "x", "a"),
        node("Selu", "a", "b"),
        node("Einsum", "b", "c", equation="ij->ji"),
        node("Relu", "c"),
    ]
    with pytest.raises(UnsupportedOperators) as e:
        load_onnx(save(tmp_path, graph_of(nodes, {"x": [2, 3]}, {}, ["y"], 13)))
    assert e.value.missing == {"Selu": ["a", "b"], "Einsum": ["c"]}
    assert "import --list-ops" in str(e.value)


def test_unsupported_variants_are_listed_with_the_rest(tmp_path: Path) -> None:
    nodes = [
        node("Pad", "x p", "a", mode="reflect"),
        node("Relu", "a", "b"),
        node("Slice", "x s s s t", "c"),
        node("MaxPool", "x", "d idx", kernel_shape=[2, 2]),
        node("Add", "b c", "y"),
    ]
    weights = {"p": ints(*[0] * 8), "s": ints(1), "t": ints(-1)}
    model = graph_of(nodes, {"x": IMAGE}, weights, ["y"], 13)
    model.graph.output.append(helper.make_tensor_value_info("idx", TensorProto.INT64, [2, 4, 6, 5]))
    with pytest.raises(UnsupportedOperators) as e:
        load_onnx(save(tmp_path, model))
    assert e.value.missing == {
        "Pad with mode=reflect": ["a"],
        "Slice with steps=-1": ["c"],
        "MaxPool with output 1 read": ["d"],
    }


@pytest.mark.parametrize("text", [b"", b"not a model", b"\x08\x07\x12\x00\xff\xff\xff"])
def test_files_that_are_no_models(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(text)
    with pytest.raises(OnnxError, match=r"m\.onnx: (is not an ONNX model|holds no operator)"):
        load_onnx(tmp_path / "m.onnx")


def test_truncated_real_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(light("squeezenet").read_bytes()[:5000])
    with pytest.raises(OnnxError, match=r"m\.onnx: is not an ONNX model"):
        load_onnx(tmp_path / "m.onnx")
    with pytest.raises(OnnxError, match="cannot be read"):
        load_onnx(tmp_path / "absent.onnx")


@pytest.mark.parametrize(
    ("nodes", "shapes", "weights", "message"),
    [
        ([node("Relu", "nowhere")], {"x": [2, 3]}, {}, "is malformed"),
        ([node("Conv", "x w")], {"x": IMAGE}, {"w": ones(5, 3, 3, 3)}, "node 'y': 4 channels, weight"),
        ([node("Add", "x w")], {"x": [2, 3]}, {"w": ones(2)}, "node 'y': operands of shapes"),
        ([node("Reshape", "x s")], {"x": [2, 3]}, {"s": ints(4, -1)}, "node 'y': cannot reshape"),
        ([node("MaxPool", kernel_shape=[9, 9])], {"x": IMAGE}, {}, "node 'y': a window of 9 does not fit"),
        ([node("Relu")], {"x": ["N", 3]}, {}, "give the batch"),
        ([node("Relu")], {"x": [2, "width"]}, {}, "symbolic dimension besides the first"),
    ],
)
def test_malformed_models_name_the_place(
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    shapes: dict[str, list[int | str]],
    weights: dict[str, np.ndarray],
    message: str,
) -> None:
    with pytest.raises(OnnxError, match=message):
        load_onnx(save(tmp_path, graph_of(nodes, shapes, weights, ["y"], 13)))


# another batch


def test_symbolic_batch_takes_the_one_asked_for(tmp_path: Path) -> None:
    assert load_onnx(save(tmp_path, graph_of([node("Relu")], {"x": ["N", 3]}, {}, ["y"], 13)), batch=5).tensor(
        "y"
    ).shape == (5, 3)


@pytest.mark.parametrize(
    ("own", "target", "expected"),
    [
        ([1, 4, 3, 3], (1, 36), (8, 36)),
        ([1, 4, 3, 3], (1, -1), (8, 36)),
        ([1, 4, 3, 3], (-1, 36), (8, 36)),
        ([1, 4, 6], (0, 2, 2, 6), (8, 2, 2, 6)),
        ([2, 4, 6], (2, 24), (8, 24)),
        ([1, 4, 6], (-1, 6), (32, 6)),
        ([1, 1, 6], (1, 6), (8, 6)),
    ],
)
def test_reshapes_follow_the_batch(
    tmp_path: Path, own: list[int | str], target: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    nodes = [node("Reshape", "x s", "r"), node("Relu", "r")]
    graph = load_onnx(save(tmp_path, graph_of(nodes, {"x": own}, {"s": ints(*target)}, ["y"], 13)), batch=8)
    assert graph.tensor(graph.outputs[0]).elements == prod(expected)
    assert (graph.tensor(graph.outputs[0]).source_shape or graph.tensor(graph.outputs[0]).shape) == expected


@pytest.mark.parametrize("target", [(4, 9), (36, 1), (36,), (2, 2, 9)])
def test_ambiguous_reshapes_are_refused(tmp_path: Path, target: tuple[int, ...]) -> None:
    path = save(tmp_path, graph_of([node("Reshape", "x s")], {"x": [1, 4, 9]}, {"s": ints(*target)}, ["y"], 13))
    found = load_onnx(path).tensor("y")
    assert (found.source_shape or found.shape) == target
    with pytest.raises(OnnxError, match="node 'y': reshape of .* does not tell where the batch 1 goes"):
        load_onnx(path, batch=8)


def test_slices_of_the_batch_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, graph_of([node("Slice", "x s e")], {"x": [1, 4]}, {"s": ints(0), "e": ints(1)}, ["y"], 13))
    with pytest.raises(OnnxError, match="dimension 0, which carries the batch"):
        load_onnx(path, batch=8)


def test_inputs_of_different_batch_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, graph_of([node("MatMul", "x z")], {"x": [2, 4], "z": [4, 3]}, {}, ["y"], 13))
    assert load_onnx(path).tensor("y").shape == (2, 3)
    with pytest.raises(OnnxError, match=r"different first dimensions \(x: 2, z: 4\)"):
        load_onnx(path, batch=8)
    with pytest.raises(OnnxError, match="must be at least 1"):
        load_onnx(path, batch=0)


# damage


@pytest.mark.parametrize("seed", range(5))
def test_damaged_files_are_imported_or_refused_but_never_fail_otherwise(tmp_path: Path, seed: int) -> None:
    """Attributes, inputs, shapes and operator types of a real file changed at random: either a checked graph or a
    typed refusal.
    """
    rng = random.Random(seed)
    raw = light("shufflenet").read_bytes()
    refused = 0
    for _ in range(20):
        model = onnx.ModelProto()
        model.ParseFromString(raw)
        victim = rng.choice([n for n in model.graph.node if n.op_type != "ConstantOfShape"])
        match rng.randrange(4):
            case 0:
                del victim.attribute[:]
            case 1:
                victim.input[rng.randrange(len(victim.input))] = rng.choice(model.graph.node).output[0]
            case 2:
                victim.op_type = rng.choice(
                    ["Reshape", "Concat", "Gemm", "MatMul", "Slice", "Transpose", "Split", "Gather", "Flatten", "Selu"]
                )
            case _:
                rng.choice([t for t in model.graph.initializer if t.dims]).dims[0] = rng.choice([0, -1, 3, 10**9])
        try:
            assert load_onnx(save(tmp_path, model), batch=rng.choice([None, 8])).check()
        except (OnnxError, UnsupportedOperators):
            refused += 1
    assert refused > 0
