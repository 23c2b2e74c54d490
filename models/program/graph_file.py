"""Writes graphs as canonical JSON and reads them again; `docs/certificate-format.md` is its grammar.

Equal graphs give equal bytes: keys are sorted, there are no spaces, and what is the default is left out.  A file may
have been written by anybody: every value is looked at before it is believed, and numbers are bounded by `MOST_EXTENT`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..files.json_text import JsonError, parse_json
from .contents import Contents
from .index import Access, Affine, Axis, Combine
from .operators import Operator, Value
from .specified import Placed, Specified
from .tensor import GraphError, Role, Tensor

if TYPE_CHECKING:
    from .graph import Graph

FORMAT: Final = "shardproof-graph/1"

MOST_EXTENT: Final = 1 << 40
"""Largest extent, coefficient or offset a file may hold: products of a few stay far below what Python needs memory
for.
"""


class Fields(NamedTuple):
    """What a graph is made of."""

    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]
    state: tuple[tuple[str, str], ...]
    leading: tuple[tuple[str, int], ...] = ()
    specified: tuple[Specified, ...] = ()


def graph_text(graph: Graph) -> str:
    """Canonical JSON text of a graph."""
    return json.dumps(
        {
            "format": FORMAT,
            "name": graph.name,
            "tensors": [_tensor_json(t) for t in graph.tensors],
            "operators": [_operator_json(op) for op in graph.operators],
            "outputs": list(graph.outputs),
            **({"state": [list(pair) for pair in graph.state]} if graph.state else {}),
            **({"leading": [list(pair) for pair in graph.leading]} if graph.leading else {}),
            **({"specified": [_specified_json(s) for s in graph.specified]} if graph.specified else {}),
        },
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    )


def graph_fields(text: str) -> Fields:
    """What the text of a graph says, well formed as JSON, not yet as a graph.  Raises `GraphError` otherwise."""
    try:
        data = parse_json(text)
    except JsonError as e:
        raise GraphError("graph file", f"is not our JSON: {str(e)[:200]}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise GraphError("graph file", f'lacks "format": "{FORMAT}"')
    try:
        return Fields(
            _text(data["name"]),
            tuple(_tensor_from(t) for t in data["tensors"]),
            tuple(_operator_from(o) for o in data["operators"]),
            tuple(_text(o) for o in data["outputs"]),
            _pairs(data.get("state", [])),
            tuple((_text(t), _int(k)) for t, k in data.get("leading", [])),
            tuple(_specified_from(s) for s in data.get("specified", [])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as e:
        raise GraphError("graph file", f"{type(e).__name__}: {str(e)[:200]}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _int(value: object) -> int:
    if type(value) is not int or abs(value) > MOST_EXTENT:
        raise ValueError(f"{str(value)[:40]} is not an integer of at most 2**40")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _pairs(values: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(values, list) or any(not isinstance(v, list) or len(v) != 2 for v in values):
        raise ValueError("state is not a list of pairs")
    return tuple((_text(a), _text(b)) for a, b in values)


def _ints(values: Sequence[object]) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is not a list")
    return tuple(_int(v) for v in values)


def _affine_json(i: Affine) -> object:
    if i.single is not None:
        return i.single
    return {"terms": [[a, c] for a, c in i.terms], "offset": i.offset, **({"whole": True} if i.whole else {})}


def _affine_from(data: object) -> Affine:
    if isinstance(data, str):
        return Affine.axis(data)
    if not isinstance(data, dict):
        raise ValueError(f"{data!r} is not an index")
    return Affine(
        tuple((_text(a), _int(c)) for a, c in data["terms"]), _int(data["offset"]), _flag(data.get("whole", False))
    )


def _access_from(data: Sequence[object]) -> Access:
    tensor, index = data
    if not isinstance(index, list):
        raise ValueError(f"{index!r} is not a list of indices")
    return Access(_text(tensor), tuple(_affine_from(i) for i in index))


_NON_FINITE: Final = {"inf": inf, "-inf": -inf, "nan": nan}
"""Numbers that JSON lacks, by the texts that name them; as `nan` is one object, graphs that hold it can be equal."""


def _value_json(v: Value) -> object:
    """A number that JSON lacks is an object `{"float": "-inf"}`: a text of the same letters stays a text."""
    if isinstance(v, float) and not isfinite(v):
        return {"float": "nan" if isnan(v) else "inf" if v > 0 else "-inf"}
    return list(v) if isinstance(v, tuple) else v


def _value_from(v: object) -> Value:
    if isinstance(v, list):
        return tuple(_text(x) for x in v) if any(isinstance(x, str) for x in v) else _ints(v)
    if isinstance(v, dict):
        number = _NON_FINITE.get(_text(v["float"])) if v.keys() == {"float"} else None
        if number is None:
            raise ValueError(f'{str(v)[:60]} is not an attribute value: {{"float": one of {", ".join(_NON_FINITE)}}}')
        return number
    if isinstance(v, str) or type(v) is int or (isinstance(v, float) and isfinite(v)):  # 1e999 is read as infinite
        return v
    raise ValueError(f"{str(v)[:60]!r} is not an attribute value")


def _tensor_json(t: Tensor) -> dict[str, object]:
    return {
        "name": t.name,
        "shape": list(t.shape),
        "dtype": t.dtype,
        "role": t.role.value,
        **({} if t.source_shape is None else {"source_shape": list(t.source_shape)}),
        **({} if t.contents is None else {"contents": t.contents.digest}),
        **({"frozen": True} if t.frozen else {}),
        **({"host": True} if t.host else {}),
    }


def _tensor_from(t: dict[str, Sequence[object]]) -> Tensor:
    return Tensor(
        _text(t["name"]),
        _ints(t["shape"]),
        _text(t["dtype"]),
        Role(t["role"]),
        _ints(t["source_shape"]) if "source_shape" in t else None,
        Contents(_text(t["contents"])) if "contents" in t else None,
        _flag(t.get("frozen", False)),
        _flag(t.get("host", False)),
    )


def _placed_json(p: Placed) -> list[object]:
    return [p.tensor, [list(dims) for dims in p.axes]]


def _placed_from(data: Sequence[object]) -> Placed:
    tensor, axes = data
    if not isinstance(axes, list):
        raise ValueError(f"{axes!r} is not a list of lists of dimensions")
    return Placed(_text(tensor), tuple(_ints(dims) for dims in axes))


def _specified_json(s: Specified) -> dict[str, object]:
    return {
        "name": s.name,
        "formula": s.formula,
        "operands": [[name, list(axes), *_placed_json(p)] for name, axes, p in s.operands],
        "sizes": [list(pair) for pair in s.sizes],
        "outside": s.outside,
        "result": _placed_json(s.result),
    }


def _specified_from(data: dict[str, Sequence[Any]]) -> Specified:
    return Specified(
        _text(data["name"]),
        _text(data["formula"]),
        tuple((_text(name), tuple(map(_text, axes)), _placed_from(rest)) for name, axes, *rest in data["operands"]),
        tuple((_text(axis), _text(size)) for axis, size in data["sizes"]),
        _flag(data["outside"]),
        _placed_from(data["result"]),
    )


def _operator_json(op: Operator) -> dict[str, object]:
    def one(a: Access) -> list[object]:
        return [a.tensor, [_affine_json(i) for i in a.index]]

    return {
        "name": op.name,
        "function": op.function,
        "axes": [[a.name, a.extent, a.combine.value if a.combine else None, a.splittable] for a in op.axes],
        "inputs": [one(a) for a in op.inputs],
        "output": one(op.output),
        "attributes": {k: _value_json(v) for k, v in op.attributes},
    }


def _operator_from(data: dict[str, object]) -> Operator:
    axes, inputs, output, attributes = data["axes"], data["inputs"], data["output"], data["attributes"]
    if not (
        isinstance(axes, list)
        and isinstance(inputs, list)
        and isinstance(output, list)
        and isinstance(attributes, dict)
    ):
        raise ValueError(f"operator {data.get('name')!r} is malformed")

    return Operator(
        _text(data["name"]),
        _text(data["function"]),
        tuple(Axis(_text(n), _int(e), Combine(c) if c is not None else None, _flag(s)) for n, e, c, s in axes),
        tuple(_access_from(a) for a in inputs),
        _access_from(output),
        tuple(sorted((_text(k), _value_from(v)) for k, v in attributes.items())),
    )
