"""Seeded random programs for the second builder: small, of every kind that a graph can hold, with results that
nobody reads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from shardproof.models.program.graph import Graph, GraphError, UnsupportedOperators
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.sources.building.attention import attention, lse_of, with_fused_gradients
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import training_step

EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
FLOATS = ("float32", "float64", "bfloat16", "float16")
DTYPES = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass
class Made:
    """The graph so far; `letters`: the axes along which a tensor was made, where einsum can name them."""

    rng: random.Random
    builder: Builder
    extents: dict[str, int]
    letters: dict[str, tuple[str, ...]]
    count: int = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def fresh(self, letters: tuple[str, ...], dtype: str | None = None) -> str:
        """A new input or parameter over these letters."""
        add = self.builder.input if self.rng.random() < 0.4 else self.builder.parameter
        name = add(self.name("t"), [self.extents[a] for a in letters], dtype or self.rng.choice(FLOATS))
        self.letters[name] = letters
        return name

    def some(self) -> str:
        """An old tensor or a new one."""
        if self.letters and self.rng.random() < 0.65:
            return self.rng.choice(sorted(self.letters))
        letters = self.rng.sample(sorted(self.extents), self.rng.randint(0 if self.rng.random() < 0.1 else 1, 3))
        if self.rng.random() < 0.08:
            letters = [letters[0], *letters] if letters else letters  # a diagonal is read
        return self.fresh(tuple(letters))

    def made(self, name: str, letters: tuple[str, ...]) -> None:
        self.letters[name] = letters


def random_graph(seed: int, operators: int = 5) -> Graph:
    """A program of some operators with random outputs, and perhaps a parameter that gets a next value."""
    rng = random.Random(seed)
    extents = {a: rng.choice(EXTENTS) for a in "abcde"}
    made = Made(rng, Builder(f"random {seed}", rng.choice(FLOATS)), extents, {})
    kinds = (
        _contract,
        _contract,
        _map,
        _map,
        _reduce,
        _normalise,
        _gather,
        _scatter,
        _grouped,
        _window,
        _slice,
        _concatenate,
        _whole,
        _opaque,
        _positions,
        _pairs,
        _affine,
    )
    for _ in range(rng.randint(1, operators)):
        rng.choice(kinds)(made)
    if not made.builder.operators:  # some kinds ask for what there is not
        _positions(made)
    values = [op.output.tensor for op in made.builder.operators]
    state = _state(made) if rng.random() < 0.4 else ()
    outputs = rng.sample(values, rng.randint(1, min(2, len(values))))
    if state and rng.random() < 0.3:
        outputs.append(state[0][1])
    return replace(made.builder.build(*outputs), state=state).check()


def random_step(seed: int) -> Graph | None:
    """One step of training of a random program; None where something on the way to the loss has no derivative."""
    rng = random.Random(seed)
    made = Made(rng, Builder(f"step {seed}"), {a: rng.choice(EXTENTS) for a in "abcd"}, {})
    made.fresh(("a", "b"), "float32")
    kinds = (_contract, _contract, _map, _reduce, _normalise, _gather, _window, _slice, _concatenate, _affine)
    for _ in range(rng.randint(1, 3)):
        rng.choice(kinds)(made)
    b = made.builder
    weight = b.parameter("weight", [made.extents["a"], made.extents["b"]])
    last = next(n for n in reversed(made.letters) if len(set(made.letters[n])) == len(made.letters[n]))
    loss = b.contract("mix", _text([made.letters[last], ("a", "b")], []), last, weight)
    try:
        return training_step(b.build(loss), rng.choice(("sgd", "adam")), loss=loss)
    except (GraphError, UnsupportedOperators):
        return None


def random_attention(seed: int) -> Graph:
    """Attention over some of the rows, with a band, a mask and a log-sum-exp perhaps; half of the seeds as one step of
    training."""
    rng = random.Random(seed)
    step = seed % 2 == 1
    extents = {a: rng.choice((1, 2, 3, 4) if step else EXTENTS) for a in "bhgst"} | {"d": 3, "e": rng.choice((1, 4))}
    b = Builder(f"attention {seed}", "float32" if step else rng.choice(FLOATS))
    rows = [a for a in ("b", "h") if rng.random() < 0.6]
    own = ["s", *(["g"] if rng.random() < 0.4 else [])]
    letters = {"q": [*rows, *own, "d"], "k": [*rows, "t", "d"], "v": [*rows, "t", "e"]}
    if rng.random() < 0.4:
        letters["m"] = rng.sample([*rows, *own, "t"], rng.randint(1, 2))
    for name, axes in letters.items():
        rng.shuffle(axes)
        b.parameter(name, [extents[a] for a in axes], "bool" if name == "m" and rng.random() < 0.5 else None)
    out = [*rows, *own, "e"]
    rng.shuffle(out)
    band = {n: rng.randint(low, 6) for n, low in (("ahead", 0), ("behind", 0), ("block", 2)) if rng.random() < 0.4}
    text = ", ".join(" ".join(axes) for axes in letters.values()) + " -> " + " ".join(out)
    y = attention(b, "y", text, *letters, query="s", **band)
    wanted = [lse_of(b, "l", y)] if rng.random() < 0.5 and not step else []
    graph = b.build(y, *wanted)
    return training_step(with_fused_gradients(graph) if seed % 4 == 3 else graph, "sgd") if step else graph


def _union(*operands: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(a for letters in operands for a in letters))


def _text(operands: list[tuple[str, ...]], right: list[str]) -> str:
    return ", ".join(" ".join(letters) for letters in operands) + " -> " + " ".join(right)


def _contract(made: Made) -> None:
    tensors = [made.some() for _ in range(made.rng.randint(1, 3))]
    operands = [made.letters[t] for t in tensors]
    union = _union(*operands)
    right = made.rng.sample(union, made.rng.randint(0, min(3, len(union))))
    made.made(made.builder.contract(made.name("contract"), _text(operands, right), *tensors), tuple(right))


def _map(made: Made) -> None:
    function, arity = made.rng.choice(
        (
            ("relu", 1),
            ("gelu", 1),
            ("cast", 1),
            ("scale", 1),
            ("add", 2),
            ("multiply", 2),
            ("less", 2),
            ("where", 3),
            ("batch_norm", 5),
            ("sum_inputs", 3),
            ("logical_not", 1),
            ("fill", 1),
        )
    )
    tensors = [made.some() for _ in range(arity)]
    if arity == 2 and made.rng.random() < 0.2:
        tensors[1] = tensors[0]  # both operands are one tensor
    operands = [made.letters[t] for t in tensors]
    right = _union(*operands)
    made.rng.shuffle(right)
    if len(right) <= 4:
        dtype = made.rng.choice(DTYPES) if function in ("cast", "fill") else None
        made.made(
            made.builder.map(made.name(function), function, *tensors, text=_text(operands, right), dtype=dtype),
            tuple(right),
        )


def _reduce(made: Made) -> None:
    tensor = made.some()
    letters = made.letters[tensor]
    right = [a for a in _union(letters) if made.rng.random() < 0.5]
    combine = made.rng.choice(tuple(Combine))
    made.made(made.builder.reduce(made.name(combine.value), _text([letters], right), tensor, combine), tuple(right))


def _normalise(made: Made) -> None:
    function, arity = made.rng.choice(
        (
            ("softmax", 1),
            ("layer_norm", 3),
            ("rms_norm", 1),
            ("layer_norm_gradient", 2),
            ("top_k_mask", 1),
            ("cumulative_sum", 1),
        )
    )
    tensor = made.some()
    letters = tuple(_union(made.letters[tensor]))
    if not letters or letters != made.letters[tensor]:
        return
    over = made.rng.sample(letters, made.rng.randint(1, len(letters)) if function != "cumulative_sum" else 1)
    tensors, operands = [tensor], [letters]
    for _ in range(arity - 1):
        operand = tuple(over) if function == "layer_norm" else letters
        tensors.append(made.fresh(operand))
        operands.append(operand)
    name = made.builder.normalise(
        made.name(function),
        function,
        _text(operands, list(letters)),
        *tensors,
        over=tuple(over),
        **({"k": 1} if function == "top_k_mask" else {}),
    )
    made.made(name, letters)


def _gather(made: Made) -> None:
    v, m, s, q = made.rng.sample(sorted(made.extents), 4)
    table = made.fresh((v, m))
    ids = made.fresh(made.rng.choice(((s,), (s, q), (q, s))), made.rng.choice(("int32", "int64")))
    right = made.rng.choice(([s, m], [m, s]))
    made.made(
        made.builder.embedding(made.name("gather"), _text([(v, m), made.letters[ids]], right), table, ids), tuple(right)
    )


def _scatter(made: Made) -> None:
    v, m, s = made.rng.sample(sorted(made.extents), 3)
    g, ids = made.fresh((s, m)), made.fresh((s,), "int64")
    axes = [Axis(v, made.extents[v]), Axis(m, made.extents[m]), Axis(s, made.extents[s], Combine.SUM)]
    name = made.builder.operator(
        made.name("scatter"), "embedding_gradient", axes, [access(g, s, m), access(ids, s)], [v, m], {"rows": v}
    )
    made.made(name, (v, m))


def _grouped(made: Made) -> None:
    """Forward, the groups summed, or the gradient of the groups."""
    e, k, n, s = made.rng.sample(sorted(made.extents), 4)
    load: str | tuple[int, ...] = made.rng.choice(("even", "any", "counted"))
    if load == "counted":
        load = tuple(made.rng.choice((0, 1, 3, 100)) + (k == 0) for k in range(made.extents[e]))
    x, ids = made.fresh((s, k)), made.fresh((s,), "int64")
    if made.rng.random() < 0.5:
        left, right, out, summed = (e, k, n), (e, k, n), (s, n), (e, k)
    else:
        left, right, out, summed = (s, n), (s, n), (e, k, n), (s,)
    w = made.fresh(left)
    axes = [Axis(a, made.extents[a], Combine.SUM if a in summed else None) for a in (*out, *summed)]
    reads = [access(x, s, k), access(w, *right), access(ids, s)]
    name = made.builder.operator(
        made.name("grouped"), "grouped_product", axes, reads, list(out), {"rows": e, "load": load}
    )
    made.made(name, out)


def _window(made: Made) -> None:
    """A convolution or a pool: strides, padding on either side, dilation, groups."""
    rng, b = made.rng, made.builder
    size, kernel, stride, pad = (
        (rng.randint(5, 9), rng.randint(4, 9)),
        (rng.randint(1, 3), rng.randint(1, 3)),
        (rng.randint(1, 3), rng.randint(1, 2)),
        (rng.randint(0, 2), rng.randint(0, 1)),
    )
    if rng.random() < 0.4:
        x = b.input(made.name("image"), (rng.choice((1, 2, 3)), rng.choice((1, 2)), *size))
        b.pool(
            made.name("pool"),
            rng.choice(("max_pool", "average_pool")),
            x,
            kernel,
            stride,
            tuple(min(p, k - 1) for p, k in zip(pad, kernel, strict=True)),
        )
        return
    groups = [2] if rng.random() < 0.3 else []
    channels, dilation = rng.choice((1, 2, 3)), (rng.randint(1, 2), 1)
    x = b.input(made.name("image"), (rng.choice((1, 2)), *groups, channels, *size), rng.choice(FLOATS))
    w = b.parameter(made.name("kernel"), (*groups, rng.choice((1, 2, 4)), channels, *kernel))
    y = b.convolution(made.name("convolution"), x, w, stride, pad, dilation, tuple(rng.randint(0, p) for p in pad))
    if rng.random() < 0.5:
        b.map(made.name("relu"), "relu", y)


def _slice(made: Made) -> None:
    """A part of a tensor with steps; sometimes beyond its ends, where nothing is read."""
    tensor = made.some()
    letters = made.letters[tensor]
    if not letters:
        return
    axes, index = [], []
    for k, a in enumerate(letters):
        step = made.rng.choice((1, 1, 1, 2, 3))
        start = made.rng.randint(-3, made.extents[a]) if made.rng.random() < 0.6 else 0
        axes.append(Axis(f"s{k}", made.rng.randint(1, made.extents[a] + 2)))
        index.append(Affine.axis(f"s{k}", step).shift(start))
    made.builder.operator(made.name("slice"), "copy", axes, [Access(tensor, tuple(index))], [a.name for a in axes])


def _concatenate(made: Made) -> None:
    """Two tensors one behind the other along the first axis; the result is read again by halves."""
    first = made.some()
    letters = made.letters[first]
    if not letters or len(set(letters)) < len(letters):
        return
    second = made.fresh(letters)
    n = made.extents[letters[0]]
    axes = [Axis("joined", 2 * n), *(Axis(a, made.extents[a]) for a in letters[1:])]
    inputs = [access(first, "joined", *letters[1:]), access(second, Affine.axis("joined").shift(-n), *letters[1:])]
    name = made.builder.operator(made.name("concat"), "copy", axes, inputs, [a.name for a in axes])
    if made.rng.random() < 0.6:
        half = [Axis("half", n), *axes[1:]]
        made.builder.operator(
            made.name("half"),
            "copy",
            half,
            [access(name, Affine.axis("half").shift(n), *letters[1:])],
            [a.name for a in half],
        )


def _whole(made: Made) -> None:
    tensor = made.some()
    elements = made.builder.tensors[tensor].elements
    front = next((d for d in (2, 3, 5) if elements % d == 0), 1)
    made.builder.view(made.name("view"), tensor, (front, elements // front))


def _opaque(made: Made) -> None:
    """A kernel of somebody's own: any accesses, its own work per point."""
    tensors = [made.some() for _ in range(made.rng.randint(1, 2))]
    names = _union(*(made.letters[t] for t in tensors))
    right = made.rng.sample(names, made.rng.randint(min(1, len(names)), min(2, len(names))))
    axes = [
        Axis(a, made.extents[a], None if a in right else Combine.SUM, made.rng.random() < 0.8)
        for a in [*right, *(a for a in names if a not in right)]
    ]
    inputs = [
        Access(t, tuple(Affine.everything() if made.rng.random() < 0.25 else Affine.axis(a) for a in made.letters[t]))
        for t in tensors
    ]
    name = made.builder.operator(
        made.name("opaque"),
        "opaque",
        axes,
        inputs,
        right,
        {"kernel": "nowhere:kernel", "flops": made.rng.randint(0, 5000)},
    )
    made.made(name, tuple(right))


def _positions(made: Made) -> None:
    letters = tuple(made.rng.sample(sorted(made.extents), made.rng.randint(1, 2)))
    made.made(
        made.builder.iota(
            made.name("iota"),
            [made.extents[a] for a in letters],
            0,
            dtype=made.rng.choice(("int32", "int64", "float32")),
        ),
        letters,
    )


def _pairs(made: Made) -> None:
    """Sums of products of pairs."""
    i, j, k = made.rng.sample(sorted(made.extents), 3)
    pairs = [made.fresh(letters) for _ in range(made.rng.randint(1, 2)) for letters in ((i, k), (k, j))]
    axes = [Axis(i, made.extents[i]), Axis(j, made.extents[j]), Axis(k, made.extents[k], Combine.SUM)]
    inputs = [access(t, *made.letters[t]) for t in pairs]
    made.made(made.builder.operator(made.name("pairs"), "product_sum", axes, inputs, [i, j]), (i, j))


def _affine(made: Made) -> None:
    """A contraction whose indices are sums of several axes: what no einsum can say."""
    tensor = made.some()
    if not made.letters[tensor]:
        return
    names = made.rng.sample(sorted(made.extents), made.rng.randint(2, 3))
    right = made.rng.sample(names, made.rng.randint(1, len(names) - 1))
    axes = [Axis(a, made.extents[a], None if a in right else Combine.SUM) for a in names]
    index = []
    for _ in made.letters[tensor]:
        found = Affine((), made.rng.randint(-2, 2))
        for a in made.rng.sample(names, made.rng.randint(0, 2)):
            found = found.plus(a, made.rng.randint(1, 2))
        index.append(found)
    made.made(
        made.builder.operator(made.name("affine"), "product", axes, [Access(tensor, tuple(index))], right), tuple(right)
    )


def _state(made: Made) -> tuple[tuple[str, str], ...]:
    """One parameter gets a next value; perhaps a moment too, whose next value is read at once."""
    b = made.builder
    parameters = [
        n
        for n in sorted(made.letters)
        if b.tensors[n].role.value == "parameter"
        and b.tensors[n].dtype in FLOATS
        and len(set(made.letters[n])) == len(made.letters[n])
    ]
    if not parameters:
        return ()
    w = made.rng.choice(parameters)
    shape, dtype = b.tensors[w].shape, b.tensors[w].dtype
    g = b.input(made.name("gradient"), shape)
    if made.rng.random() < 0.5:
        return ((w, b.map(f"{w}.next", "sgd_update", w, g, dtype=dtype)),)
    m = b.parameter(f"{w}.m", shape)
    after = b.map(f"{w}.m.next", "adam_moment1", m, g)
    return ((m, after), (w, b.map(f"{w}.next", "sgd_update", w, after, dtype=dtype)))
