"""One form for graphs that say the same thing in more or fewer operators; used to compare an imported model with the
zoo's.

    fused        x a + b in one operator                  ->  a product and a sum
    scales       scale(x) y  and  scale of a scale        ->  one scale of the contraction's result (contractions are
    linear)
    positions    scale or shift of positions              ->  positions
    units        dimensions and axes of extent 1, read at 0 only, and taps of extent 1   ->  left out
    constants    computed from positions more than once   ->  computed once
    layout       transposes, reshapes and expansions      ->  index maps of their readers
    (`models.sources.building.digits`)

Each step keeps every value over the reals; floating-point results differ in the last digits where a scale moves.
Nothing else is changed: which weights exist, what is contracted with what, in which order sums are taken, and every
element type stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine
from shardproof.models.program.operators import Operator, Value
from shardproof.models.sources.building.digits import split_digits
from shardproof.models.sources.building.flat import used


def canonical(graph: Graph) -> Graph:
    """The graph in the form above; the names of what remains are kept.

    >>> from shardproof.models.sources.building.builder import Builder
    >>> g = Builder("g")
    >>> x = g.map("half", "scale", g.input("x", (4, 8)), scale=0.5)
    >>> y = g.contract("y", "b k, k n -> b n", x, g.parameter("w", (8, 2)))
    >>> [(op.name, op.function) for op in canonical(g.build(y)).operators]
    [('y~', 'product'), ('y', 'scale')]
    """
    before = None
    while graph != before:
        before = graph
        for step in _STEPS:
            graph = used(step(graph)).check()
    return graph


def _unfused(graph: Graph) -> Graph:
    """x a + b as a product and a sum."""
    tensors, operators = {t.name: t for t in graph.tensors}, []
    for op in graph.operators:
        if op.function != "fused_scale_shift":
            operators.append(op)
            continue
        old = tensors[op.output.tensor]
        inner = replace(op.output, tensor=f"{op.output.tensor}~product")
        tensors[inner.tensor] = replace(old, name=inner.tensor)
        operators.append(Operator(inner.tensor, "multiply", op.axes, op.inputs[:2], inner))
        operators.append(Operator(op.name, "add", op.axes, (inner, op.inputs[2]), op.output))
    return replace(graph, tensors=tuple(tensors.values()), operators=tuple(operators))


def _scales(graph: Graph) -> Graph:
    """One scaled operand of a contraction, or one scale of a scale, moved down.  Called until nothing moves."""
    writer = {op.output.tensor: op for op in graph.operators}
    readers = graph.readers()

    def scaled(tensor: str) -> Operator | None:
        op = writer.get(tensor)
        alone = op is not None and op.function == "scale" and len(readers[tensor]) == 1 and tensor not in graph.results
        return op if alone else None

    tensors, operators = {t.name: t for t in graph.tensors}, []
    for op in graph.operators:
        found = [(j, s) for j, a in enumerate(op.inputs) if (s := scaled(a.tensor)) is not None]
        start = writer.get(op.inputs[0].tensor) if op.function in ("scale", "shift") else None
        if start is not None and start.function == "iota":
            operators.append(_positions(op, start))
        elif op.function == "scale" and found:
            inner = found[0][1]
            operators.append(
                replace(
                    op, inputs=(_through(inner, op.inputs[0]),), attributes=(("scale", _factor(op) * _factor(inner)),)
                )
            )
        elif op.function == "product" and found and all(_plain(s) for _, s in found):
            factor, inputs = 1.0, list(op.inputs)
            for j, s in found:
                inputs[j], factor = _through(s, op.inputs[j]), factor * _factor(s)
            inner_output = replace(op.output, tensor=f"{op.output.tensor}~")
            tensors[inner_output.tensor] = replace(tensors[op.output.tensor], name=inner_output.tensor)
            operators.append(replace(op, name=f"{op.name}~", inputs=tuple(inputs), output=inner_output))
            axes = tuple(a for a in op.axes if a.combine is None)
            operators.append(Operator(op.name, "scale", axes, (inner_output,), op.output, (("scale", factor),)))
        else:
            operators.append(op)
    return replace(graph, tensors=tuple(tensors.values()), operators=tuple(operators))


def _positions(op: Operator, iota: Operator) -> Operator:
    """Positions that are scaled or shifted are positions."""
    numbers = dict(iota.attributes)
    (access,) = op.inputs
    at = {i.single: o.single for i, o in zip(iota.output.index, access.index, strict=True)}
    along = at.get(str(numbers["along"]))
    if along is None:  # read at one place only
        return op
    start, step = (
        float(v) if isinstance(v := numbers.get(k, d), (int, float)) else d for k, d in (("start", 0.0), ("step", 1.0))
    )
    if op.function == "scale":
        start, step = start * _factor(op), step * _factor(op)
    else:
        shift = op.attribute("shift", 0.0)
        start += float(shift) if isinstance(shift, (int, float)) else 0.0
    return Operator(op.name, "iota", op.axes, (), op.output, (("along", along), ("start", start), ("step", step)))


def _factor(op: Operator) -> float:
    value = op.attribute("scale", 1.0)
    return float(value) if isinstance(value, (int, float)) else 1.0


def _plain(scale: Operator) -> bool:
    """Whether a scale reads every element of its input once."""
    return all(i.single is not None for i in scale.inputs[0].index) or len(scale.inputs[0].axes) == len(scale.axes)


def _through(scale: Operator, access: Access) -> Access:
    """The access to a scale's result as an access to its input."""
    at: dict[str | None, Affine] = {o.single: i for o, i in zip(scale.output.index, access.index, strict=True)}
    index = []
    for i in scale.inputs[0].index:
        out = Affine((), i.offset)
        for axis, coef in i.terms:
            inner = at[axis]
            out = Affine((*out.terms, *((a, c * coef) for a, c in inner.terms)), out.offset + coef * inner.offset)
        index.append(out)
    return Access(scale.inputs[0].tensor, tuple(index))


def _units(graph: Graph) -> Graph:
    """Without dimensions and axes of extent 1 that say nothing."""
    shapes = {t.name: t.shape for t in graph.tensors}
    needed: set[tuple[str, int]] = set()
    for op in graph.operators:
        one = {a.name for a in op.axes if a.extent == 1}
        for a in op.inputs:
            for k, i in enumerate(a.index):
                if (
                    shapes[a.tensor][k] == 1
                    and not i.whole
                    and (i.offset != 0 or any(t not in one for t, _ in i.terms))
                ):
                    needed.add((a.tensor, k))
    for (
        op
    ) in graph.operators:  # a statistic, or positions, along one element: the axis stays, and so does its dimension
        named = _named(op)
        needed |= {(op.output.tensor, k) for k, i in enumerate(op.output.index) if i.single in named}
    kept = {t.name: [k for k, n in enumerate(t.shape) if n > 1 or (t.name, k) in needed] for t in graph.tensors}
    tensors = tuple(
        t
        if len(kept[t.name]) == len(t.shape)
        else replace(t, shape=tuple(t.shape[k] for k in kept[t.name]), source_shape=None)
        for t in graph.tensors
    )
    return replace(graph, tensors=tensors, operators=tuple(_without_units(op, kept) for op in graph.operators))


def _named(op: Operator) -> set[str]:
    return {*op.over, *(str(op.attribute(k, "")) for k in ("rows", "along", "axis"))}


def _without_units(op: Operator, kept: dict[str, list[int]]) -> Operator:
    written = {op.output.index[k].single for k in kept[op.output.tensor]}
    gone = {a.name for a in op.axes if a.extent == 1 and a.name not in written and a.name not in _named(op)}

    def access(a: Access) -> Access:
        index = [a.index[k] for k in kept[a.tensor]]
        return Access(
            a.tensor, tuple(replace(i, terms=tuple((t, c) for t, c in i.terms if t not in gone)) for i in index)
        )

    axes = tuple(a for a in op.axes if a.name not in gone)
    attributes = tuple((k, v) for k, v in op.attributes if (k, v) not in _DEFAULTS)
    return replace(op, axes=axes, inputs=tuple(map(access, op.inputs)), output=access(op.output), attributes=attributes)


_DEFAULTS: tuple[tuple[str, Value], ...] = (
    ("scale", 1.0),
    ("count_include_pad", 0),
    ("approximate", "none"),
    ("exclusive", 0),
)


def _layout(graph: Graph) -> Graph:
    """Index maps in place of transposes (in a graph with state, parameters must keep their shapes)."""
    stateless = replace(graph, state=())
    return split_digits(stateless).graph if not graph.state else graph


def _shared(graph: Graph) -> Graph:
    """Constants that are computed twice are computed once."""
    constant: set[str] = set()
    first: dict[tuple[Operator, str], str] = {}
    other: dict[str, str] = {}
    operators = []
    for op in graph.operators:
        inputs = tuple(replace(a, tensor=other.get(a.tensor, a.tensor)) for a in op.inputs)
        op = replace(op, inputs=inputs)
        if all(a.tensor in constant for a in inputs) and op.name not in graph.results:
            constant.add(op.output.tensor)
            known = first.setdefault((_nameless(op), graph.tensor(op.output.tensor).dtype), op.output.tensor)
            if known != op.output.tensor:
                other[op.output.tensor] = known
                continue
        operators.append(op)
    return replace(graph, operators=tuple(operators))


def _nameless(op: Operator) -> Operator:
    """The operator with axes named by position, without its own name."""
    names = {a.name: f"a{k}" for k, a in enumerate(op.axes)}

    def access(a: Access, tensor: str) -> Access:
        return Access(tensor, tuple(replace(i, terms=tuple((names[t], c) for t, c in i.terms)) for i in a.index))

    attributes = tuple(
        (
            k,
            tuple(names.get(str(x), x) for x in v)
            if isinstance(v, tuple)
            else names.get(str(v), v)
            if k in ("along", "rows", "axis")
            else v,
        )
        for k, v in op.attributes
    )
    axes = tuple(replace(a, name=names[a.name]) for a in op.axes)
    inputs = tuple(access(a, a.tensor) for a in op.inputs)
    return Operator("", op.function, axes, inputs, access(op.output, ""), attributes)  # type: ignore[arg-type]


_STEPS: tuple[Callable[[Graph], Graph], ...] = (_unfused, _units, _layout, _scales, _shared)
