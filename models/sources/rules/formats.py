"""Reads public rule files as data: the JSON shape of FlexFlow, the protobuf of TASO, and the checks both
need.

    rule  =  source operators  =>  target operators,   with pairs of tensors (source, target) that must be equal

A tensor is (operator, output): a negative operator is a pattern input, and the same number on both sides is the same
tensor; an operator >= 0 is an entry of the list of the same side, which must stand before its reader (lists are
topologically sorted).  What the operators mean is not said here: `meaning` turns a `PublicRule` into a `Substitution`.

Sources: `graph_subst.pb` of jiazhihao/TASO and `substitutions/graph_subst_3_v2.json` of flexflow/flexflow-train (both
Apache-2.0); codes and schema as the files of TASO and Unity have them, names compared with FlexFlow's
`substitution_loader.h`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...files.json_text import JsonError, parse_json

OPERATOR_CODES: Final = (
    "INPUT",
    "WEIGHT",
    "ANY",
    "CONV2D",
    "DROPOUT",
    "LINEAR",
    "POOL2D_MAX",
    "POOL2D_AVG",
    "RELU",
    "SIGMOID",
    "TANH",
    "BATCHNORM",
    "CONCAT",
    "SPLIT",
    "RESHAPE",
    "TRANSPOSE",
    "EW_ADD",
    "EW_MUL",
    "MATMUL",
    "MUL",
    "ENLARGE",
    "MERGE_GCONV",
    "CONSTANT_IMM",
    "CONSTANT_ICONV",
    "CONSTANT_ONE",
    "CONSTANT_POOL",
    "PARTITION",
    "COMBINE",
    "REPLICATE",
    "REDUCE",
    "EMBEDDING",
)
"""Operator names by their protobuf code (26 and above: FlexFlow)."""

PARAMETER_CODES: Final = (
    "OP_TYPE",
    "NUM_INPUTS",
    "NUM_OUTPUTS",
    "GROUP",
    "KERNEL_H",
    "KERNEL_W",
    "STRIDE_H",
    "STRIDE_W",
    "PAD",
    "ACTI",
    "NUMDIM",
    "AXIS",
    "PERM",
    "OUTSHUFFLE",
    "MERGE_GCONV_COUNT",
    "PARALLEL_DIM",
    "PARALLEL_DEGREE",
)
"""Parameter names by their protobuf code (15 and above: FlexFlow)."""

_ALSO = ("BATCHMATMUL", "SOFTMAX", "LAYERNORM", "PIPELINE", "BATCH", "IDENTITY", "NOOP", "SLICE")
"""Operators that FlexFlow's reader knows by name without a code in the rule files (BATCH: our word for the end of a
pipeline).
"""

OPERATORS: Final = frozenset(OPERATOR_CODES) | frozenset(_ALSO)
PARAMETERS: Final = frozenset(PARAMETER_CODES)
ARITY: Final[Mapping[str, int]] = {
    "CONV2D": 2,
    "LINEAR": 2,
    "POOL2D_MAX": 1,
    "POOL2D_AVG": 1,
    "RELU": 1,
    "SIGMOID": 1,
    "TANH": 1,
    "SPLIT": 1,
    "RESHAPE": 1,
    "TRANSPOSE": 1,
    "EW_ADD": 2,
    "EW_MUL": 2,
    "MATMUL": 2,
    "MUL": 2,
    "ENLARGE": 1,
    "PARTITION": 1,
    "COMBINE": 1,
    "REPLICATE": 1,
    "REDUCE": 1,
    "EMBEDDING": 2,
    "BATCHMATMUL": 2,
    "SOFTMAX": 1,
    "LAYERNORM": 1,
    "PIPELINE": 1,
    "BATCH": 1,
    "IDENTITY": 1,
    "NOOP": 1,
}
"""Operands where their number is fixed."""

MOST_RULES, MOST_OPERATORS, MOST_OUTPUTS, LARGEST = 100_000, 64, 64, 1 << 31


class RuleError(ValueError):
    """A rule that cannot be read; `rule` names it."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule, self.message = rule, message


@dataclass(frozen=True)
class PublicTensor:
    """Output `output` of operator `operator` of the same side; a pattern input if `operator < 0`."""

    operator: int
    output: int = 0


@dataclass(frozen=True)
class PublicOperator:
    """`kind` without the prefix `OP_`; `parameters` (name without `PM_`, integer) in the order of the file."""

    kind: str
    inputs: tuple[PublicTensor, ...]
    parameters: tuple[tuple[str, int], ...] = ()

    def get(self, name: str) -> int | None:
        """The parameter `name`, or None."""
        return dict(self.parameters).get(name)

    @property
    def outputs(self) -> int:
        """Number of tensors it writes."""
        said = self.get("NUM_OUTPUTS")
        return 1 if self.kind != "SPLIT" else 2 if said is None else said


@dataclass(frozen=True)
class PublicRule:
    """See the module docstring.  `index` is the position in the published file."""

    index: int
    name: str
    source: tuple[PublicOperator, ...]
    target: tuple[PublicOperator, ...]
    outputs: tuple[tuple[PublicTensor, PublicTensor], ...]

    @property
    def unbound(self) -> tuple[int, ...]:
        """Pattern inputs that only the target reads, in order of first use: the rule is no rewrite unless they are
        supplied.

        >>> x, w = PublicTensor(-1), PublicTensor(-4)
        >>> PublicRule(0, "r", (PublicOperator("RELU", (x,)),), (PublicOperator("EW_ADD", (x, w)),), ()).unbound
        (-4,)
        """
        bound = {t.operator for op in self.source for t in op.inputs} | {s.operator for s, _ in self.outputs}
        used = [t.operator for op in self.target for t in op.inputs] + [t.operator for _, t in self.outputs]
        return tuple(dict.fromkeys(i for i in used if i < 0 and i not in bound))

    def unbound_message(self) -> str | None:
        """What is wrong with the unbound inputs, or None."""
        if not self.unbound:
            return None
        names = ", ".join(map(str, self.unbound))
        return (
            f"right-hand input{'s' if len(self.unbound) > 1 else ''} {names} not bound on the left; the rule cannot "
            f"be applied without supplying that tensor"
        )


def parse_public_rules(text: str, place: str = "rule file") -> tuple[PublicRule, ...]:
    """The rules of JSON text.  Raises `RuleError`.

    >>> parse_public_rules('{"rule": [{"name": "r", "srcOp": [{"type": "OP_RELU"}]}]}')
    Traceback (most recent call last):
        ..
    shardproof.models.sources.rules.formats.RuleError: r: srcOp[0]: field 'input' is missing
    """
    try:
        data = parse_json(text, floats=False)
    except JsonError as error:
        raise RuleError(place, f"is not JSON of a rule file: {str(error)[:160]}") from None
    if not isinstance(data, dict) or not isinstance(data.get("rule"), list):
        raise RuleError(place, 'needs an object with the list "rule"')
    if len(data["rule"]) > MOST_RULES:
        raise RuleError(place, f"holds {len(data['rule'])} rules, more than {MOST_RULES}")
    return check_rules(tuple(_rule(r, i) for i, r in enumerate(data["rule"])))


def write_public_rules(rules: Sequence[PublicRule]) -> str:
    """JSON text in FlexFlow's shape: the fields and spellings its reader asks for, one line.

    >>> r = PublicRule(3, "r", (PublicOperator("RELU", (PublicTensor(-1),)),), (PublicOperator("RELU",
    ...     (PublicTensor(-1),)),), ((PublicTensor(0), PublicTensor(0)),))
    >>> parse_public_rules(write_public_rules([r])) == (r,)
    True
    """
    return json.dumps({"_t": "RuleCollection", "rule": [_rule_json(r) for r in rules]}, separators=(",", ":"))


def check_rules(rules: tuple[PublicRule, ...]) -> tuple[PublicRule, ...]:
    """The rules, if each is well formed (known operators, no cycle, sorted, every reference exists), else
    `RuleError`.
    """
    for rule in rules:
        for side, operators in (("srcOp", rule.source), ("dstOp", rule.target)):
            _check_side(rule.name, side, operators)
        if not rule.outputs:
            raise RuleError(rule.name, "mappedOutput is empty: nothing is claimed")
        for k, (s, t) in enumerate(rule.outputs):
            _check_reference(rule.name, f"mappedOutput[{k}] source", s, rule.source, len(rule.source))
            _check_reference(rule.name, f"mappedOutput[{k}] target", t, rule.target, len(rule.target))
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise RuleError(next(n for n in names if names.count(n) > 1), "two rules of the file have this name")
    return rules


def _check_side(rule: str, side: str, operators: tuple[PublicOperator, ...]) -> None:
    if len(operators) > MOST_OPERATORS:
        raise RuleError(rule, f"{side} has {len(operators)} operators, more than {MOST_OPERATORS}")
    cycle = _cycle(operators)
    if cycle:
        raise RuleError(rule, f"{side} is cyclic: operators {' -> '.join(map(str, cycle))}")
    for i, op in enumerate(operators):
        place = f"{side}[{i}]"
        if op.kind not in OPERATORS:
            raise RuleError(
                rule,
                f"{place}: unknown operator OP_{op.kind}; known: {', '.join('OP_' + k for k in sorted(ARITY))}, "
                f"OP_CONCAT",
            )
        for name, _ in op.parameters:
            if name not in PARAMETERS:
                raise RuleError(rule, f"{place} (OP_{op.kind}): unknown parameter PM_{name}")
        if len(dict(op.parameters)) < len(op.parameters):
            raise RuleError(rule, f"{place} (OP_{op.kind}): a parameter occurs twice")
        expected = ARITY.get(op.kind)
        if expected is not None and len(op.inputs) != expected:
            raise RuleError(rule, f"{place} (OP_{op.kind}): {len(op.inputs)} inputs, must be {expected}")
        if not op.inputs and op.kind == "CONCAT":
            raise RuleError(rule, f"{place} (OP_CONCAT): needs at least two inputs")
        if not 1 <= op.outputs <= MOST_OUTPUTS:
            raise RuleError(
                rule,
                f"{place} (OP_{op.kind}): PM_NUM_OUTPUTS {op.outputs}, must be 1 to {MOST_OUTPUTS}; has no output "
                f"0 or too many",
            )
        said = op.get("NUM_INPUTS")
        if said is not None and said != len(op.inputs):
            raise RuleError(rule, f"{place} (OP_{op.kind}): {len(op.inputs)} inputs, PM_NUM_INPUTS says {said}")
        for j, tensor in enumerate(op.inputs):
            _check_reference(rule, f"{place}.input[{j}]", tensor, operators, i)


def _check_reference(
    rule: str, place: str, tensor: PublicTensor, operators: tuple[PublicOperator, ...], before: int
) -> None:
    if tensor.operator < 0:
        if tensor.output != 0:
            raise RuleError(rule, f"{place}: pattern input {tensor.operator} has tsId {tensor.output}, must be 0")
        return
    if tensor.operator >= len(operators):
        raise RuleError(rule, f"{place}: there is no operator {tensor.operator}, the list has {len(operators)}")
    if tensor.operator >= before:
        raise RuleError(
            rule,
            f"{place}: reads operator {tensor.operator}, which does not stand before it; sort the list topologically",
        )
    if not 0 <= tensor.output < operators[tensor.operator].outputs:
        raise RuleError(rule, f"{place}: operator {tensor.operator} has no output {tensor.output}")


def _cycle(operators: tuple[PublicOperator, ...]) -> list[int]:
    """A cycle among the operators, as the list of its positions with the first repeated, or []."""
    state = [0] * len(operators)  # 1: on the path, 2: done
    for start in range(len(operators)):
        path = [start] if not state[start] else []
        while path:
            here = path[-1]
            state[here] = 1
            ahead = [
                t.operator
                for t in operators[here].inputs
                if 0 <= t.operator < len(operators) and state[t.operator] != 2
            ]
            if not ahead:
                state[here] = 2
                path.pop()
            elif state[ahead[0]] == 1:
                return [*path[path.index(ahead[0]) :], ahead[0]]
            else:
                path.append(ahead[0])
    return []


def _rule(data: object, position: int) -> PublicRule:
    place = f"rule[{position}]"
    if not isinstance(data, dict):
        raise RuleError(place, "must be an object")
    name = data.get("name", place)
    if not isinstance(name, str) or not name or len(name) > 200:
        raise RuleError(place, "name must be a text")
    index = _integer(data.get("index", position), name, "index")
    sides = [
        tuple(_operator(o, name, f"{s}[{i}]") for i, o in enumerate(_list(data, s, name, "", required=True)))
        for s in ("srcOp", "dstOp")
    ]
    pairs = []
    for k, m in enumerate(_list(data, "mappedOutput", name, "", required=True)):
        ends = [
            _integer(_field(m, f, name, f"mappedOutput[{k}]"), name, f"mappedOutput[{k}].{f}")
            for f in ("srcOpId", "srcTsId", "dstOpId", "dstTsId")
        ]
        pairs.append((PublicTensor(ends[0], ends[1]), PublicTensor(ends[2], ends[3])))
    return PublicRule(index, name, sides[0], sides[1], tuple(pairs))


def _operator(data: object, rule: str, place: str) -> PublicOperator:
    kind = _field(data, "type", rule, place)
    if not isinstance(kind, str):
        raise RuleError(rule, f"{place}.type must be a text such as OP_RELU")
    inputs = []
    for j, t in enumerate(_list(data, "input", rule, place, required=True)):
        ids = [
            _integer(_field(t, f, rule, f"{place}.input[{j}]"), rule, f"{place}.input[{j}].{f}")
            for f in ("opId", "tsId")
        ]
        inputs.append(PublicTensor(ids[0], ids[1]))
    parameters = []
    for j, p in enumerate(_list(data, "para", rule, place, required=False)):
        key = _field(p, "key", rule, f"{place}.para[{j}]")
        if not isinstance(key, str):
            raise RuleError(rule, f"{place}.para[{j}].key must be a text such as PM_AXIS")
        value = _integer(_field(p, "value", rule, f"{place}.para[{j}]"), rule, f"{place}.para[{j}].value")
        parameters.append((key.removeprefix("PM_"), value))
    return PublicOperator(kind.removeprefix("OP_"), tuple(inputs), tuple(parameters))


def _field(data: object, name: str, rule: str, place: str) -> object:
    if not isinstance(data, dict) or name not in data:
        raise RuleError(rule, f"{place}: field {name!r} is missing")
    return data[name]


def _list(data: object, name: str, rule: str, place: str, required: bool) -> list[object]:
    if isinstance(data, dict) and name not in data and not required:
        return []
    value = _field(data, name, rule, place) if place else _field(data, name, rule, "rule")
    if not isinstance(value, list) or len(value) > 1024:
        raise RuleError(rule, f"{place + '.' if place else ''}{name} must be a list of at most 1024")
    return value


def _integer(value: object, rule: str, place: str) -> int:
    if type(value) is not int or not -LARGEST <= value < LARGEST:
        raise RuleError(rule, f"{place} must be a 32-bit integer, not {str(value)[:40]}")
    return value


def _rule_json(r: PublicRule) -> dict[str, object]:
    def operator(op: PublicOperator) -> dict[str, object]:
        return {
            "_t": "Operator",
            "input": [{"_t": "Tensor", "opId": t.operator, "tsId": t.output} for t in op.inputs],
            "para": [{"_t": "Parameter", "key": f"PM_{k}", "value": v} for k, v in op.parameters],
            "type": f"OP_{op.kind}",
        }

    return {
        "_t": "Rule",
        "dstOp": [operator(op) for op in r.target],
        "mappedOutput": [
            {"_t": "MapOutput", "dstOpId": t.operator, "dstTsId": t.output, "srcOpId": s.operator, "srcTsId": s.output}
            for s, t in r.outputs
        ],
        "name": r.name,
        "srcOp": [operator(op) for op in r.source],
        "index": r.index,
    }
