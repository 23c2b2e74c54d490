"""Writes our rules in FlexFlow's terms, so that others can use them.

FlexFlow's tensors have a replica axis in front: axis a of ours is its axis a + 1; Replicate and Reduce act on axis 0; a
partial sum of two tensors is their concat on axis 0.  Degrees that are symbols are written as 2, which FlexFlow's
reader takes for any degree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...rewrites.rule import Node, Parameter, Substitution
from .formats import PublicOperator, PublicRule, PublicTensor, RuleError, check_rules

DEGREE: Final = 2
_PLAIN: Final[Mapping[str, str]] = {
    "add": "EW_ADD",
    "mul": "EW_MUL",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "tanh": "TANH",
    "matmul": "MATMUL",
    "batch_matmul": "BATCHMATMUL",
    "scale": "MUL",
}
_PARALLEL: Final[Mapping[str, str]] = {
    "partition": "PARTITION",
    "combine": "COMBINE",
    "tile": "REPLICATE",
    "block_sum": "REDUCE",
    "replicate": "REPLICATE",
    "reduce": "REDUCE",
}
_ACTIVATION: Final = {"none": 0, "sigmoid": 1, "relu": 2, "tanh": 3}


def public_rule(rule: Substitution, index: int = 0) -> PublicRule:
    """The rule in FlexFlow's shape; `RuleError` if an operator has no word there.

    >>> from ...rewrites.rule import Pattern, node
    >>> r = Substitution("r", (Pattern("x", 2),), (node("relu", -1), node("partition", 0, axis=0, degree="d")),
    ...     (node("relu", -1),), ((1, 0),))
    >>> public_rule(r).source[1].parameters
    (('PARALLEL_DIM', 1), ('PARALLEL_DEGREE', 2))
    """
    ranks = {-1 - k: p.rank for k, p in enumerate(rule.inputs)}
    (source, at_source), (target, at_target) = (_side(rule, nodes, dict(ranks)) for nodes in (rule.left, rule.right))
    outputs = tuple((at_source[a], at_target[b]) for a, b in rule.outputs)
    return check_rules((PublicRule(index, rule.name, tuple(source), tuple(target), outputs),))[0]


def _side(
    rule: Substitution, nodes: tuple[Node, ...], ranks: dict[int, int]
) -> tuple[list[PublicOperator], dict[int, PublicTensor]]:
    out: list[PublicOperator] = []
    where = {-1 - k: PublicTensor(-1 - k) for k in range(len(rule.inputs))}
    splits: dict[tuple[int, Parameter], int] = {}
    for k, n in enumerate(nodes):
        inputs = tuple(where[w] for w in n.inputs)
        rank = ranks[k] = ranks[n.inputs[0]] if n.inputs else 0
        shift = 0 if n.operator in ("tile", "block_sum", "linear3") or rank == 3 and _plain_flexflow(rule) else 1
        if n.operator in ("split0", "split1"):
            axis = dict(n.parameters)["axis"]
            key = (n.inputs[0], axis)
            if key not in splits:
                splits[key] = len(out)
                out.append(PublicOperator("SPLIT", inputs, (("AXIS", _number(axis) + shift), ("NUM_OUTPUTS", 2))))
            where[k] = PublicTensor(splits[key], int(n.operator[-1]))
            continue
        out.append(_operator(rule, n, inputs, rank, shift))
        where[k] = PublicTensor(len(out) - 1)
    return out, where


def _operator(rule: Substitution, n: Node, inputs: tuple[PublicTensor, ...], rank: int, shift: int) -> PublicOperator:
    """A node with FlexFlow's word for it; `shift`: replica axes in front of those of the table."""
    get = dict(n.parameters)
    if n.operator in _PLAIN:
        return PublicOperator(_PLAIN[n.operator], inputs, (("ACTI", 0),) if n.operator == "matmul" else ())
    if n.operator in ("linear", "linear3"):
        return PublicOperator("LINEAR", inputs, (("ACTI", _ACTIVATION[str(get["activation"])]),))
    if n.operator in ("concat", "stack"):
        axis = 0 if n.operator == "stack" else _number(get["axis"]) + shift
        return PublicOperator("CONCAT", inputs, (("AXIS", axis), ("NUM_INPUTS", 2), ("NUMDIM", rank + shift)))
    if n.operator in _PARALLEL or n.operator in ("pipeline", "batch"):
        degree = get["degree"] if n.operator in _PARALLEL else get["steps"]
        axis = 0 if n.operator in ("replicate", "reduce") else _number(get["axis"]) + shift
        return PublicOperator(
            _PARALLEL.get(n.operator, n.operator.upper()),
            inputs,
            (("PARALLEL_DIM", axis), ("PARALLEL_DEGREE", degree if isinstance(degree, int) else DEGREE)),
        )
    if n.operator in ("softmax", "layer_norm"):
        return PublicOperator(n.operator.upper().replace("_", ""), inputs, (("AXIS", _number(get["axis"]) + shift),))
    if n.operator in ("conv", "max_pool", "average_pool"):
        return _window(rule, n, inputs, get)
    if n.operator == "transpose":
        perm = get["perm"]
        assert isinstance(perm, tuple)  # the table's check has seen to it
        digits = (0, *(p + 1 for p in perm)) if shift else perm
        packed = 0
        for d in digits:
            packed = packed * len(digits) + d
        return PublicOperator("TRANSPOSE", inputs, (("NUMDIM", len(digits)), ("PERM", packed), ("OUTSHUFFLE", 1)))
    raise RuleError(rule.name, f"operator {n.operator} has no word in FlexFlow's rule files")


def _window(
    rule: Substitution, n: Node, inputs: tuple[PublicTensor, ...], get: Mapping[str, Parameter]
) -> PublicOperator:
    kind = {"conv": "CONV2D", "max_pool": "POOL2D_MAX", "average_pool": "POOL2D_AVG"}[n.operator]
    found: list[tuple[str, int]] = []
    if n.operator == "conv":
        weight = rule.inputs[-1 - n.inputs[1]] if n.inputs[1] < 0 else None
        found += [
            (key, dict(weight.fixed)[a])
            for a, key in ((2, "KERNEL_H"), (3, "KERNEL_W"))
            if weight is not None and a in dict(weight.fixed)
        ]
    for key in ("kernel_h", "kernel_w", "stride_h", "stride_w"):
        value = get.get(key)
        if isinstance(value, str):
            raise RuleError(rule.name, f"{n.operator} with open {key}: FlexFlow's rules need a number")
        if isinstance(value, int):
            found.append((key.upper(), value))
    found.append(("PAD", 0 if get["padding"] == "same" else 1))
    if n.operator == "conv":
        found.append(("ACTI", _ACTIVATION[str(get["activation"])]))
    return PublicOperator(kind, inputs, tuple(found))


def _plain_flexflow(rule: Substitution) -> bool:
    """Whether the rule was read from FlexFlow's file: its replica axis is already there."""
    return all(p.fixed[:1] == ((0, 1),) for p in rule.inputs) and bool(rule.inputs)


def _number(value: Parameter) -> int:
    return value if isinstance(value, int) else 0
