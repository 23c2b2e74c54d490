"""The exact evaluator: operators against numpy, both evaluators against each other, and differences that must be seen.

`models.rewrites.eval` (numeric typing, compiled index expressions) and `models.rewrites.value` (symbolic typing of one
instance) share only the operator table: on random instances of the public rules they must agree.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.models.rewrites.eval import Difference, Evaluator, Tensor, denotation, plain_type
from shardproof.models.rewrites.index_arrays import PRIME, EvaluationError, Exact, Modular
from shardproof.models.rewrites.instances import draw_instances, integer_arrays
from shardproof.models.rewrites.polynomial import Poly
from shardproof.models.rewrites.rule import Equal, Pattern, Substitution, node
from shardproof.models.rewrites.shards import IllTyped
from shardproof.models.sources.rules.axiom_meaning import axiom_substitutions
from shardproof.models.sources.rules.axioms import read_public_axioms
from shardproof.models.sources.rules.files import read_public_rules
from shardproof.models.sources.rules.meaning import reading_of, substitutions

DATA = Path(__file__).parent / "data" / "rules"


def value(operator: str, *arrays: np.ndarray, **parameters: object) -> np.ndarray:
    """One operator on unsharded arrays, exactly."""
    evaluator = Evaluator(Exact())
    inputs = [Tensor(plain_type(a.shape, (1,) * a.ndim), a.astype(object)) for a in arrays]
    one = node(operator, *range(-1, -1 - len(arrays), -1), **parameters)  # type: ignore[arg-type]
    return evaluator.side([one], inputs, {})[0].values


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-5, 6, shape)


def padded(x: np.ndarray, k: int, s: int, same: bool) -> tuple[np.ndarray, int]:
    """x with its last axis padded as the convention says (ceil of the half before), and the number of outputs."""
    n = x.shape[-1]
    if not same:
        return x, (n - k) // s + 1
    out = -(-n // s)
    total = max((out - 1) * s + k - n, 0)
    before = -(-total // 2)
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, total - before)]), out


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(("k", "s"), [(1, 1), (2, 1), (3, 1), (3, 2), (2, 3), (1, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_is_the_textbook_sum(k: int, s: int, same: bool, groups: int) -> None:
    x, w = numbers(2, 4, 5, 6), numbers(4, 4 // groups, k, 2, seed=1)
    found = value("conv", x, w, stride_h=s, stride_w=1, padding="same" if same else "valid", activation="none")
    wide, across = padded(x, 2, 1, same)
    tall, down = padded(wide.swapaxes(2, 3), k, s, same)
    tall = tall.swapaxes(2, 3)
    want = np.zeros((2, 4, down, across), dtype=int)
    each = 4 // groups
    for o in range(4):
        g = o // each
        for i in range(down):
            for j in range(across):
                patch = tall[:, g * each : (g + 1) * each, i * s : i * s + k, j : j + 2]
                want[:, o, i, j] = (patch * w[o]).sum(axis=(1, 2, 3))
    assert (found == want).all()


def test_pools() -> None:
    x = np.array([3, 5, 7, -1]).reshape(1, 1, 1, 4)
    window = {"kernel_h": 1, "kernel_w": 3, "stride_h": 1, "stride_w": 1, "padding": "same"}
    assert value("max_pool", x, **window).ravel().tolist() == [5, 7, 7, 7]
    assert value("average_pool", x, **window).ravel().tolist() == [Fraction(8, 3), 5, Fraction(11, 3), 2]
    assert value("average_pool_inside", x, **window).ravel().tolist() == [4, 5, Fraction(11, 3), 3]
    assert value("max_pool", -abs(x) - 1, **window).ravel().tolist() == [-4, -4, -2, -2], "padding is never the maximum"


def test_operators_against_numpy() -> None:
    a, b, c = numbers(3, 4), numbers(4, 2, seed=1), numbers(3, 4, seed=2)
    assert (value("matmul", a, b) == a @ b).all()
    assert (value("linear", a, b.T, activation="relu") == np.maximum(a @ b, 0)).all()
    assert (
        value("batch_matmul", numbers(2, 3, 4), numbers(2, 4, 5, seed=3)) == numbers(2, 3, 4) @ numbers(2, 4, 5, seed=3)
    ).all()
    assert (value("add", a, c) == a + c).all() and (value("mul", a, c) == a * c).all()
    assert (value("transpose", numbers(2, 3, 4), perm=(2, 0, 1)) == numbers(2, 3, 4).transpose(2, 0, 1)).all()
    assert (value("concat", a, c, axis=1) == np.concatenate([a, c], 1)).all()
    assert (value("merge_axes", numbers(2, 3, 4), axis=1) == numbers(2, 3, 4).reshape(2, 12)).all()
    assert (value("split_axis", numbers(2, 12), axis=1, inner=4) == numbers(2, 12).reshape(2, 3, 4)).all()
    assert (value("take", a, axis=1, length=3) == a[:, :3]).all() and (
        value("drop", a, axis=1, length=3) == a[:, 3:]
    ).all()
    assert (value("reduce_sum", a, axis=0) == a.sum(0)).all() and (value("reduce_max", a, axis=1) == a.max(1)).all()
    ids = np.array([[0, 2], [1, 1]])
    assert (value("embedding_bag", a, ids) == a[ids].sum(1)).all()
    assert (value("embedding", a, ids[0]) == a[ids[0]]).all()
    assert value("enlarge", numbers(1, 1, 1, 2), kernel_h=3, kernel_w=2)[0, 0].tolist() == [
        [0, 0],
        list(numbers(2)),
        [0, 0],
    ]


def test_softmax_and_layer_norm_are_what_they_say() -> None:
    """Over the uninterpreted exp: rows of softmax add up to 1; layer norm does not see a shift."""
    x = numbers(2, 3)
    assert value("softmax", x, axis=1).sum(axis=1).tolist() == [1, 1]
    assert (value("layer_norm", x, axis=1) == value("layer_norm", x + 5, axis=1)).all()


def test_biases_gains_and_norms_with_them_are_what_they_say() -> None:
    x, rows, columns = numbers(2, 3), np.array([5, -7]), np.array([2, 3, -4])
    assert (value("add_along", x, columns, axis=1) == x + columns).all()
    assert (value("scale_along", x, rows, axis=0) == x * rows[:, None]).all()
    assert (value("subtract", x, x * 3) == -2 * x).all() and (value("negate", x) == -x).all()
    norm = value("layer_norm", x, axis=0)
    assert (value("layer_norm_affine", x, columns, columns + 1, axis=0, along=1) == norm * columns + columns + 1).all()
    scaled = value("rms_norm_scaled", x, columns, axis=1, along=1)
    assert (scaled == value("rms_norm", x, axis=1) * columns).all()
    assert (value("rms_norm", x, axis=1) == value("rms_norm", x[:, ::-1], axis=1)[:, ::-1]).all()


def test_parallel_operators_keep_what_is_denoted() -> None:
    evaluator = Evaluator(Exact())
    x, w = numbers(4, 6).astype(object), numbers(2, 6, seed=1).astype(object)
    inputs = [Tensor(plain_type((4, 6), (1, 1)), x), Tensor(plain_type((2, 6), (1, 1)), w)]
    side = [
        node("partition", -1, axis=1, degree=3),
        node("partition", -2, axis=1, degree=3),
        node("linear", 0, 1, activation="none"),
        node("reduce", 2, degree=3),
        node("replicate", 3, degree=2),
        node("all_reduce", 2, degree=3),
    ]
    found = evaluator.side(side, inputs, {})
    assert [int(str(s)) for s in found[2].type.sums] == [3] and found[2].values.shape == (3, 4, 2)
    for k in (2, 3, 4, 5):
        assert (denotation(found[k], evaluator.ring) == x @ w.T).all()
    assert str(found[4].type.copy) == "2" and str(found[5].type.copy) == "3"
    timed = evaluator.side([node("pipeline", -1, axis=0, steps=2), node("batch", 0, axis=0, steps=2)], inputs[:1], {})
    assert timed[0].values.shape == (2, 2, 6) and (timed[0].values[1] == x[2:]).all() and (timed[1].values == x).all()


@pytest.mark.parametrize(
    ("side", "says"),
    [
        ([node("stack", -1, -2), node("relu", 0)], "not linear"),
        ([node("stack", -1, -2), node("mul", 0, 0)], "not linear"),
        ([node("stack", -1, -2), node("add", 0, -1)], "not linear"),
        ([node("reduce", -1, degree=2)], "needs"),
        ([node("partition", -1, axis=0, degree=5)], "divide"),
        ([node("combine", -1, axis=0, degree=2)], "divide"),
        ([node("split0", -1, axis=0)], "not joined"),
        ([node("matmul", -1, -2)], "needs"),
        ([node("transpose", -1, perm=(0, 1, 2))], "permutation"),
    ],
)
def test_what_does_not_type(side: list[object], says: str) -> None:
    """Among others: a partial sum fed to something that is not linear in it."""
    inputs = [Tensor(plain_type((4, 6), (1, 1)), numbers(4, 6).astype(object))] * 2
    with pytest.raises(IllTyped, match=says):
        Evaluator(Exact()).side(side, inputs, {})  # type: ignore[arg-type]


def test_modular_arithmetic_agrees_with_exact() -> None:
    r = Substitution(
        "r",
        (Pattern("x", 2), Pattern("w", 2)),
        (node("linear", -1, -2, activation="none"), node("mul", 0, 0)),
        (node("linear", -1, -2, activation="none"), node("add", 0, 0)),
        ((1, 1),),
    )
    sizes = {"x.0": 2, "x.1": 3, "w.0": 2, "w.1": 3}
    arrays = {"x": numbers(2, 3), "w": numbers(2, 3, seed=1)}
    sides = []
    for ring in (Exact(), Modular()):
        inputs = [Tensor(plain_type(a.shape, (1, 1)), ring.whole(a)) for a in arrays.values()]
        sides.append(Evaluator(ring).side(r.left, inputs, sizes)[1].values)
    assert (sides[0] % PRIME == sides[1]).all()


def test_differences_are_told_apart() -> None:
    x = Pattern("x", 1, (), True)
    evaluator = Evaluator(Exact())

    def outcome(rule: Substitution, n: int, d: int = 1) -> Difference:
        return evaluator.compare(rule, {"x.0": n, "x.0.degree": d, "d": 2}, {"x": numbers(n).astype(object)}).difference

    part = node("partition", -1, axis=0, degree="d")
    assert outcome(Substitution("a", (x,), (part,), (part,), ((0, 0),)), 4) is Difference.NOWHERE
    assert outcome(Substitution("a", (x,), (part,), (part,), ((0, 0),)), 3) is Difference.LEFT_ILL_TYPED
    assert outcome(Substitution("a", (x,), (node("relu", -1),), (part,), ((0, 0),)), 3) is Difference.RIGHT_ILL_TYPED
    assert outcome(Substitution("a", (x,), (node("relu", -1),), (part,), ((0, 0),)), 4) is Difference.TYPE
    assert (
        outcome(Substitution("a", (x,), (node("relu", -1),), (node("add", -1, -1),), ((0, 0),)), 4) is Difference.VALUE
    )
    needs = Substitution("a", (x,), (part,), (part,), ((0, 0),), (Equal(Poly.of("x.0"), Poly.of(8)),))
    assert outcome(needs, 4) is Difference.PRECONDITION


def test_division_by_zero_is_no_value() -> None:
    ring = Exact()
    with pytest.raises(EvaluationError, match="zero"):
        ring.call("reciprocal", [], [np.array([0], dtype=object)])


def everything() -> list[Substitution]:
    out = [s for a in read_public_axioms(DATA / "taso-axioms.json") for s in axiom_substitutions(a)]
    for name in ("taso-even.json", "flexflow-even.json"):
        rules = read_public_rules(DATA / name)
        out += [s for r in rules[::8] for s in substitutions(r, reading_of(rules))]
    return out


def test_two_evaluators_agree() -> None:
    """Typing and values of both sides of every eighth public rule and every axiom, on random instances."""
    from shardproof.models.rewrites.value import instance_names, right_fault, tensor, type_instance, value_fault

    compared = 0
    for k, rule in enumerate(everything()):
        rng, ring = np.random.default_rng(k), Exact()
        evaluator = Evaluator(ring)
        for values in list(draw_instances(rule, k, 6))[:1]:
            arrays = integer_arrays(rule, values, rng, ring)
            try:
                mine = evaluator.compare(rule, values, arrays).difference
            except EvaluationError:
                continue
            typed = type_instance(rule, {n: values[n] for n in instance_names(rule)})
            if mine in (Difference.NOWHERE, Difference.VALUE):
                assert right_fault(typed) is None, (rule.name, values)
                given = tuple(tensor(arrays[p.name].shape, arrays[p.name].ravel().tolist()) for p in rule.inputs)
                fault = value_fault(typed, given)
                assert (fault is None) == (mine is Difference.NOWHERE), (rule.name, values, fault)
                compared += 1
            elif mine in (Difference.RIGHT_ILL_TYPED, Difference.TYPE):
                assert right_fault(typed) is not None, (rule.name, values)
                compared += 1
    assert compared > 125
