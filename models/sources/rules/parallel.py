"""Reads properties of the parallel operators, as rules to prove: our own list (Unity needed 33), Pipeline
and Batch, and its figures.

    Partition, Combine   where an axis lies                Replicate   copies                Reduce   adds up partial
    sums
    Pipeline, Batch, Accumulate   the same in time         AllReduce = Reduce, then Replicate         Stack   two
    tensors as partial sums

Each property stands for every size and degree; a family is written once per rank and axis it is stated for.  Sources:
Unity (OSDI 2022), section 3.3 and figures 9, 10, 11, 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...rewrites.polynomial import Poly
from ...rewrites.rule import Condition, Equal, Parameter, Pattern, Substitution
from ...rewrites.terms import Apply, Term, rule_of

x, y, z, v = 0, 1, 2, 3
NAMES: Final = ("x", "y", "z", "v")


def term(operator: str, *arguments: Term, **parameters: Parameter) -> Term:
    """Shorthand.

    >>> term("partition", 0, axis=1, degree="d").label
    ('partition', (('axis', 1), ('degree', 'd')))
    """
    return Apply((operator, tuple(sorted(parameters.items()))), arguments)


def partition(t: Term, axis: int) -> Term:
    return term("partition", t, axis=axis, degree="d")


def combine(t: Term, axis: int) -> Term:
    return term("combine", t, axis=axis, degree="d")


def replicate(t: Term) -> Term:
    return term("replicate", t, degree="d")


def reduce_(t: Term, degree: Parameter = "d") -> Term:
    return term("reduce", t, degree=degree)


def matmul(a: Term, b: Term) -> Term:
    return term("matmul", a, b)


def batch_matmul(a: Term, b: Term) -> Term:
    return term("batch_matmul", a, b)


def linear(a: Term, b: Term, activation: str = "none") -> Term:
    return term("linear", a, b, activation=activation)


def conv(a: Term, b: Term, padding: str, activation: str = "none") -> Term:
    return term("conv", a, b, stride_h="sh", stride_w="sw", padding=padding, activation=activation)


def pipeline(t: Term, axis: int) -> Term:
    return term("pipeline", t, axis=axis, steps="m")


def batch(t: Term, axis: int) -> Term:
    return term("batch", t, axis=axis, steps="m")


def transpose(t: Term) -> Term:
    return term("transpose", t, perm=(1, 0))


def rule(
    name: str, ranks: Sequence[int], left: Term, right: Term, sharded: bool = True, needs: tuple[Condition, ...] = ()
) -> Substitution:
    """A rule of one output over inputs x, y, z, v."""
    inputs = tuple(Pattern(NAMES[k], r, (), sharded) for k, r in enumerate(ranks))
    found = rule_of(name, inputs, (left,), (right,))
    return Substitution(found.name, found.inputs, found.left, found.right, found.outputs, needs)


def _moves() -> Iterator[Substitution]:
    for r in (1, 2, 3, 4):
        for a in range(r):
            yield rule(f"combine-partition-{a}-of-{r}", [r], combine(partition(x, a), a), x)
            yield rule(f"partition-combine-{a}-of-{r}", [r], partition(combine(x, a), a), x)
            yield rule(f"replicate-partition-{a}-of-{r}", [r], replicate(partition(x, a)), partition(replicate(x), a))
            yield rule(f"replicate-combine-{a}-of-{r}", [r], replicate(combine(x, a)), combine(replicate(x), a))
            for b in range(a):
                yield rule(
                    f"partition-partition-{b}{a}-of-{r}",
                    [r],
                    partition(partition(x, a), b),
                    partition(partition(x, b), a),
                )
                yield rule(f"combine-combine-{b}{a}-of-{r}", [r], combine(combine(x, a), b), combine(combine(x, b), a))
            for b in range(r):
                if b != a:
                    yield rule(
                        f"partition-combine-{a}{b}-of-{r}",
                        [r],
                        partition(combine(x, b), a),
                        combine(partition(x, a), b),
                    )


def _elementwise() -> Iterator[Substitution]:
    for r in (1, 2, 3, 4):
        for f in ("relu", "gelu"):
            yield rule(f"{f}-replicate-of-{r}", [r], term(f, replicate(x)), replicate(term(f, x)))
        for op in ("add", "mul"):
            yield rule(
                f"{op}-replicate-of-{r}", [r, r], term(op, replicate(x), replicate(y)), replicate(term(op, x, y))
            )
        for a in range(r):
            for f in ("relu", "gelu"):
                yield rule(f"{f}-partition-{a}-of-{r}", [r], term(f, partition(x, a)), partition(term(f, x), a))
            for op in ("add", "mul"):
                yield rule(
                    f"{op}-partition-{a}-of-{r}",
                    [r, r],
                    term(op, partition(x, a), partition(y, a)),
                    partition(term(op, x, y), a),
                )
                yield rule(
                    f"{op}-combine-{a}-of-{r}",
                    [r, r],
                    term(op, combine(x, a), combine(y, a)),
                    combine(term(op, x, y), a),
                )
    for r in (2, 3):
        for a in range(r):
            yield rule(
                f"concat-replicate-{a}-of-{r}",
                [r, r],
                term("concat", replicate(x), replicate(y), axis=a),
                replicate(term("concat", x, y, axis=a)),
            )
            for b in range(r):
                if a == b:
                    continue
                yield rule(
                    f"concat-{a}-partition-{b}-of-{r}",
                    [r, r],
                    term("concat", partition(x, b), partition(y, b), axis=a),
                    partition(term("concat", x, y, axis=a), b),
                )
                yield rule(
                    f"softmax-{a}-partition-{b}-of-{r}",
                    [r],
                    term("softmax", partition(x, b), axis=a),
                    partition(term("softmax", x, axis=a), b),
                )
                yield rule(
                    f"layer-norm-{a}-partition-{b}-of-{r}",
                    [r],
                    term("layer_norm", partition(x, b), axis=a),
                    partition(term("layer_norm", x, axis=a), b),
                )
    yield rule("transpose-partition-0", [2], transpose(partition(x, 0)), partition(transpose(x), 1))
    yield rule("transpose-partition-1", [2], transpose(partition(x, 1)), partition(transpose(x), 0))
    yield rule("transpose-replicate", [2], transpose(replicate(x)), replicate(transpose(x)))


def _products() -> Iterator[Substitution]:
    yield from _linear_and_matmul()
    yield from _batch_matmul()
    yield from _windows()
    yield from _embedding()


def _linear_and_matmul() -> Iterator[Substitution]:
    for f in ("none", "relu"):
        said = "linear" if f == "none" else "linear-relu"
        yield rule(
            f"{said}-data-parallel", [2, 2], linear(partition(x, 0), replicate(y), f), partition(linear(x, y, f), 0)
        )
        yield rule(
            f"{said}-model-parallel", [2, 2], linear(replicate(x), partition(y, 0), f), partition(linear(x, y, f), 1)
        )
    yield rule(
        "linear-reduction-parallel", [2, 2], reduce_(linear(partition(x, 1), partition(y, 1))), linear(x, y), False
    )
    yield rule("linear-replicate", [2, 2], linear(replicate(x), replicate(y)), replicate(linear(x, y)), False)
    yield rule("linear-relu-fusion", [2, 2], term("relu", linear(x, y)), linear(x, y, "relu"), False)
    yield rule("matmul-rows", [2, 2], matmul(partition(x, 0), replicate(y)), partition(matmul(x, y), 0))
    yield rule("matmul-columns", [2, 2], matmul(replicate(x), partition(y, 1)), partition(matmul(x, y), 1))
    yield rule(
        "matmul-reduction-parallel", [2, 2], reduce_(matmul(partition(x, 1), partition(y, 0))), matmul(x, y), False
    )
    yield rule("matmul-replicate", [2, 2], matmul(replicate(x), replicate(y)), replicate(matmul(x, y)), False)


def _batch_matmul() -> Iterator[Substitution]:
    yield rule(
        "batch-matmul-batches", [3, 3], batch_matmul(partition(x, 0), partition(y, 0)), partition(batch_matmul(x, y), 0)
    )
    yield rule(
        "batch-matmul-rows", [3, 3], batch_matmul(partition(x, 1), replicate(y)), partition(batch_matmul(x, y), 1)
    )
    yield rule(
        "batch-matmul-columns", [3, 3], batch_matmul(replicate(x), partition(y, 2)), partition(batch_matmul(x, y), 2)
    )
    yield rule(
        "batch-matmul-reduction-parallel",
        [3, 3],
        reduce_(batch_matmul(partition(x, 2), partition(y, 1))),
        batch_matmul(x, y),
        False,
    )


def _windows() -> Iterator[Substitution]:
    for padding in ("same", "valid"):
        yield rule(
            f"conv-samples-{padding}",
            [4, 4],
            conv(partition(x, 0), replicate(y), padding),
            partition(conv(x, y, padding), 0),
            False,
        )
    for kind in ("max_pool", "average_pool"):
        for padding in ("same", "valid"):
            window: dict[str, Parameter] = {
                "kernel_h": "kh",
                "kernel_w": "kw",
                "stride_h": "sh",
                "stride_w": "sw",
                "padding": padding,
            }
            for a in (0, 1):
                yield rule(
                    f"{kind.replace('_', '-')}-{padding}-partition-{a}",
                    [4],
                    term(kind, partition(x, a), **window),
                    partition(term(kind, x, **window), a),
                    False,
                )


def _embedding() -> Iterator[Substitution]:
    yield rule(
        "embedding-ids",
        [2, 1],
        term("embedding", replicate(x), partition(y, 0)),
        partition(term("embedding", x, y), 0),
        False,
    )
    yield rule(
        "embedding-columns",
        [2, 1],
        term("embedding", partition(x, 1), replicate(y)),
        partition(term("embedding", x, y), 1),
        False,
    )
    yield rule(
        "embedding-rows",
        [2, 1],
        reduce_(term("embedding", partition(x, 0), replicate(y))),
        term("embedding", x, y),
        False,
    )


def _partial() -> Iterator[Substitution]:
    """Reduce and what it commutes with; a partial sum is a product over a sharded axis, or a stack."""
    p = matmul(partition(x, 1), partition(y, 0))
    yield rule("add-is-reduce-stack", [2, 2], term("add", x, y), reduce_(term("stack", x, y), 2))
    yield rule("reduce-then-replicate", [2, 2], replicate(reduce_(p)), term("all_reduce", p, degree="d"), False)
    yield rule(
        "reduce-replicate-stack",
        [2, 2],
        term("replicate", reduce_(term("stack", x, y), 2), degree=2),
        term("all_reduce", term("stack", x, y), degree=2),
    )
    yield rule("matmul-of-reduce", [2, 2, 2], matmul(reduce_(p), z), reduce_(matmul(p, replicate(z))), False)
    yield rule("matmul-with-reduce", [2, 2, 2], matmul(z, reduce_(p)), reduce_(matmul(replicate(z), p)), False)
    yield rule("linear-of-reduce", [2, 2, 2], linear(reduce_(p), z), reduce_(linear(p, replicate(z))), False)
    yield rule("mul-of-reduce", [2, 2, 2], term("mul", reduce_(p), z), reduce_(term("mul", p, replicate(z))), False)
    yield rule("transpose-of-reduce", [2, 2], transpose(reduce_(p)), reduce_(transpose(p)), False)
    yield rule("partition-of-reduce", [2, 2], partition(reduce_(p), 0), reduce_(partition(p, 0)), False)
    yield rule("replicate-of-reduce", [2, 2], replicate(reduce_(p)), reduce_(replicate(p)), False)
    q = matmul(partition(z, 1), partition(v, 0))
    yield rule("add-of-reduces", [2, 2, 2, 2], term("add", reduce_(p), reduce_(q)), reduce_(term("add", p, q)), False)
    yield rule(
        "concat-of-reduces",
        [2, 2, 2, 2],
        term("concat", reduce_(p), reduce_(q), axis=0),
        reduce_(term("concat", p, q, axis=0)),
        False,
    )


def _time() -> Iterator[Substitution]:
    for r in (1, 2, 3):
        for a in range(r):
            yield rule(f"batch-pipeline-{a}-of-{r}", [r], batch(pipeline(x, a), a), x)
            yield rule(f"relu-pipeline-{a}-of-{r}", [r], batch(term("relu", pipeline(x, a)), a), term("relu", x))
            yield rule(
                f"add-pipeline-{a}-of-{r}",
                [r, r],
                batch(term("add", pipeline(x, a), pipeline(y, a)), a),
                term("add", x, y),
            )
    for f in ("none", "relu"):
        said = "linear" if f == "none" else "linear-relu"
        yield rule(f"{said}-pipeline", [2, 2], batch(linear(pipeline(x, 0), y, f), 0), linear(x, y, f), f == "none")
    yield rule("two-stage-pipeline", [2, 2, 2], batch(linear(linear(pipeline(x, 0), y), z), 0), linear(linear(x, y), z))
    yield rule(
        "pipeline-of-pipelines",
        [2, 2, 2],
        batch(linear(pipeline(batch(linear(pipeline(x, 0), y), 0), 0), z), 0),
        linear(linear(x, y), z),
    )
    yield rule("matmul-pipeline", [2, 2], batch(matmul(pipeline(x, 0), y), 0), matmul(x, y))
    yield rule("softmax-pipeline", [2], batch(term("softmax", pipeline(x, 0), axis=1), 0), term("softmax", x, axis=1))
    yield rule(
        "gradient-accumulation",
        [2, 2],
        term("accumulate", matmul(transpose(pipeline(x, 0)), pipeline(y, 0))),
        matmul(transpose(x), y),
        False,
    )


def _figures() -> Iterator[Substitution]:
    """Unity's figures: 9 (strategies for batched matrix multiplication), 11, 16; 10 is a sequence of the others,
    see `figure_10`.
    """
    yield rule(
        "figure-9-data", [3, 3], batch_matmul(x, y), combine(batch_matmul(partition(x, 1), replicate(y)), 1), False
    )
    yield rule(
        "figure-9-model", [3, 3], batch_matmul(x, y), combine(batch_matmul(replicate(x), partition(y, 2)), 2), False
    )
    yield rule(
        "figure-9-reduction", [3, 3], batch_matmul(x, y), reduce_(batch_matmul(partition(x, 2), partition(y, 1))), False
    )
    yield rule(
        "figure-9-heads", [3, 3], batch_matmul(x, y), combine(batch_matmul(partition(x, 0), partition(y, 0)), 0), False
    )
    yield rule("figure-9-pipeline", [3, 3], batch_matmul(x, y), batch(batch_matmul(pipeline(x, 1), y), 1), False)
    for a in range(3):
        yield rule(f"figure-11a-{a}", [3], term("relu", x), combine(term("relu", partition(x, a)), a), False)
    yield rule("figure-11b", [2, 2], replicate(term("add", x, y)), replicate(reduce_(term("stack", x, y), 2)))
    yield rule(
        "figure-16a",
        [2, 2],
        replicate(linear(x, y, "relu")),
        term("relu", replicate(reduce_(linear(partition(x, 1), partition(y, 1))))),
        False,
    )
    yield rule(
        "figure-16b",
        [2, 2, 2, 2],
        linear(term("concat", x, y, axis=1), term("concat", z, v, axis=1)),
        term("add", linear(x, z), linear(y, v)),
        False,
        (Equal(Poly.of("x.1"), Poly.of("z.1")),),
    )
    bag = term("split_axis", term("embedding", x, term("merge_axes", y, axis=0)), axis=0, inner="l")
    yield rule(
        "figure-16c",
        [2, 2],
        term("embedding_bag", x, y),
        term("reduce_sum", bag, axis=1),
        False,
        (Equal(Poly.of("l"), Poly.of("y.1")),),
    )


def parallel_rules() -> tuple[Substitution, ...]:
    """All properties, figures last."""
    return (*_moves(), *_elementwise(), *_products(), *_partial(), *_time(), *_figures())


def figure_10() -> tuple[Substitution, ...]:
    """Figure 10 (Megatron): a block of two linears split over d devices, and its attention with batched matrix
    multiplications.

    One rule says what the whole sequence of the figure does; the derivation is the sequence.
    """
    mlp = linear(term("relu", linear(x, y)), z)
    inner = term("relu", linear(replicate(x), partition(y, 0)))
    attention = batch_matmul(term("softmax", batch_matmul(x, y), axis=2), z)
    heads = batch_matmul(term("softmax", batch_matmul(partition(x, 0), partition(y, 0)), axis=2), partition(z, 0))
    products = batch_matmul(batch_matmul(partition(x, 0), partition(y, 0)), partition(z, 0))
    return (
        rule("figure-10-mlp", [2, 2, 2], mlp, reduce_(linear(inner, partition(z, 1))), False),
        rule("figure-10-products", [3, 3, 3], batch_matmul(batch_matmul(x, y), z), combine(products, 0), False),
        rule("figure-10-attention", [3, 3, 3], attention, combine(heads, 0), False),
    )


def way_points(name: str) -> tuple[Term, ...]:
    """Graphs in the middle of the sequence of a figure, for derivations that are longer than a search reaches."""
    if name == "figure-10-mlp":
        return (reduce_(linear(term("relu", partition(linear(x, y), 1)), partition(z, 1))),)
    if name in ("figure-10-products", "figure-10-attention"):
        last = batch_matmul(x, y) if name == "figure-10-products" else term("softmax", batch_matmul(x, y), axis=2)
        return (combine(batch_matmul(partition(last, 0), partition(z, 0)), 0),)
    return ()
