"""Reads public rules as substitutions: which operator of the table each published operator is.

Two readings, because the two files mean different things by one word:

TASO       logical axes; the rank of a tensor follows from NUMDIM and the operators around it; a rule of elementwise
           operators only stands for one equation per rank 2, 3, 4; KERNEL_H, KERNEL_W are sizes of the weight, also
           where the weight is computed.
FlexFlow   every tensor has rank 3: replica, sample (weights: out channel), channel; pattern inputs have extent 1 on the
           replica axis and any degrees on the others; Replicate and Reduce tile and sum equal blocks of any axis;
           Linear reads replica 0 of both operands, which is only right when all replicas are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ...rewrites.rule import MOST_RANK, Node, Parameter, Pattern, Substitution
from .formats import PublicOperator, PublicRule, PublicTensor, RuleError

ACTIVATION: Final = {0: "none", 1: "sigmoid", 2: "relu", 3: "tanh"}
PADDING: Final = {0: "same", 1: "valid"}
FLEXFLOW_ONLY: Final = frozenset({"PARTITION", "COMBINE", "REPLICATE", "REDUCE", "LINEAR", "PIPELINE", "BATCH"})
ELEMENTWISE: Final = {"EW_ADD": "add", "EW_MUL": "mul"}
MAPS: Final = {"RELU": "relu", "SIGMOID": "sigmoid", "TANH": "tanh"}
_PLAIN: Final = frozenset(
    {
        *ELEMENTWISE,
        *MAPS,
        "CONCAT",
        "SPLIT",
        "PARTITION",
        "COMBINE",
        "REPLICATE",
        "REDUCE",
        "IDENTITY",
        "NOOP",
        "SOFTMAX",
        "LAYERNORM",
        "PIPELINE",
        "BATCH",
    }
)
MEANT: Final = (
    "BATCH",
    "BATCHMATMUL",
    "COMBINE",
    "CONCAT",
    "CONV2D",
    "ENLARGE",
    "EW_ADD",
    "EW_MUL",
    "IDENTITY",
    "LAYERNORM",
    "LINEAR",
    "MATMUL",
    "MUL",
    "NOOP",
    "PARTITION",
    "PIPELINE",
    "POOL2D_AVG",
    "POOL2D_MAX",
    "REDUCE",
    "RELU",
    "REPLICATE",
    "SIGMOID",
    "SOFTMAX",
    "SPLIT",
    "TANH",
    "TRANSPOSE",
)
"""Published operators that have a meaning here."""
_WINDOW: Final = ("KERNEL_H", "KERNEL_W", "STRIDE_H", "STRIDE_W", "PAD", "ACTI")
_PARALLEL: Final = ("PARALLEL_DIM", "PARALLEL_DEGREE")
READ: Final[Mapping[str, tuple[str, ...]]] = {
    "CONCAT": ("AXIS",),
    "SPLIT": ("AXIS",),
    "CONV2D": (*_WINDOW, "GROUP"),
    "POOL2D_MAX": _WINDOW,
    "POOL2D_AVG": _WINDOW,
    "LINEAR": ("ACTI",),
    "MATMUL": ("ACTI",),
    "BATCHMATMUL": ("ACTI",),
    "TRANSPOSE": ("PERM", "OUTSHUFFLE"),
    "ENLARGE": ("KERNEL_H", "KERNEL_W"),
    "SOFTMAX": ("AXIS",),
    "LAYERNORM": ("AXIS",),
    **dict.fromkeys(("PARTITION", "COMBINE", "REPLICATE", "REDUCE", "PIPELINE", "BATCH"), _PARALLEL),
}
"""Parameters that each operator reads, beside the counts of its inputs, outputs and axes; any other is refused by
name.
"""
_RANKS: Final[Mapping[str, tuple[int, ...]]] = {
    "MATMUL": (2, 2, 2),
    "CONV2D": (4, 4, 4),
    "POOL2D_MAX": (4, 4),
    "POOL2D_AVG": (4, 4),
    "ENLARGE": (4, 4),
    "BATCHMATMUL": (3, 3, 3),
}
"""Ranks of the operands and of the result, where the operator fixes them (TASO reading)."""


class Reading(Enum):
    """What the words of a file mean; see the module docstring."""

    TASO = "taso"
    FLEXFLOW = "flexflow"


def reading_of(rules: Sequence[PublicRule]) -> Reading:
    """FlexFlow's if a parallel operator, a Linear or a concat of rank 3 occurs, else TASO's."""
    for rule in rules:
        for op in (*rule.source, *rule.target):
            if op.kind in FLEXFLOW_ONLY or (op.kind == "CONCAT" and op.get("NUMDIM") == 3):
                return Reading.FLEXFLOW
    return Reading.TASO


def substitutions(rule: PublicRule, reading: Reading, degree: int | str | None = None) -> tuple[Substitution, ...]:
    """The substitutions a rule stands for (one per rank if it is rank-polymorphic, otherwise one).  `degree` replaces
    PARALLEL_DEGREE (a text: for every degree).  Raises `RuleError` for operators without a meaning here.

    >>> x, y = PublicTensor(-1), PublicTensor(-2)
    >>> add = PublicOperator("EW_ADD", (x, y)), PublicOperator("EW_ADD", (y, x))
    >>> r = PublicRule(0, "r", add[:1], add[1:], ((PublicTensor(0), PublicTensor(0)),))
    >>> [s.name for s in substitutions(r, Reading.TASO)], substitutions(r, Reading.FLEXFLOW)[0].inputs[0].sharded
    (['r@rank2', 'r@rank3', 'r@rank4'], True)
    """
    names = tuple(dict.fromkeys(t.operator for op in (*rule.source, *rule.target) for t in op.inputs if t.operator < 0))
    names = tuple(dict.fromkeys((*names, *(t.operator for pair in rule.outputs for t in pair if t.operator < 0))))
    if reading is Reading.FLEXFLOW:
        inputs = tuple(Pattern(_name(i), 3, ((0, 1),), True) for i in names)
        return (_translated(rule, rule.name, names, inputs, reading, degree),)
    ranks = _input_ranks(rule, names)
    free = [i for i in names if ranks[i] is None]
    out = []
    for rank in (2, 3, 4) if free else (0,):
        inputs = tuple(Pattern(_name(i), ranks[i] or rank) for i in names)
        done = _translated(rule, f"{rule.name}@rank{rank}" if free else rule.name, names, inputs, reading, degree)
        out.append(_with_kernels(rule, done, names))
    return tuple(out)


def _name(i: int) -> str:
    return f"x{-i}"


def _translated(
    rule: PublicRule,
    name: str,
    names: tuple[int, ...],
    inputs: tuple[Pattern, ...],
    reading: Reading,
    degree: int | str | None,
) -> Substitution:
    wires: list[tuple[list[Node], dict[PublicTensor, int]]] = []
    for side, operators in (("srcOp", rule.source), ("dstOp", rule.target)):
        nodes: list[Node] = []
        where = {PublicTensor(i): -1 - k for k, i in enumerate(names)}
        for j, op in enumerate(operators):
            results = _Published(
                op, tuple(where[t] for t in op.inputs), nodes, reading, degree, rule.name, f"{side}[{j}]"
            ).wires()
            where |= {PublicTensor(j, k): w for k, w in enumerate(results)}
        wires.append((nodes, where))
    (left, at_left), (right, at_right) = wires
    return Substitution(
        name, inputs, tuple(left), tuple(right), tuple((at_left[s], at_right[t]) for s, t in rule.outputs)
    )


@dataclass(frozen=True)
class _Published:
    """One operator of a published rule: the wires that it reads, and where its nodes are appended.  `degree`: what
    stands for the degree of parallelism that the file has; `place`: where it is, for messages.
    """

    op: PublicOperator
    inputs: tuple[int, ...]
    nodes: list[Node]
    reading: Reading
    degree: int | str | None
    rule: str
    place: str

    def add_node(self, operator: str, operands: tuple[int, ...], **parameters: Parameter) -> int:
        """The wire of a new node."""
        self.nodes.append(Node(operator, operands, tuple(sorted(parameters.items()))))
        return len(self.nodes) - 1

    def need(self, key: str) -> int:
        """A parameter that must be there."""
        value = self.op.get(key)
        if value is None:
            raise RuleError(self.rule, f"{self.place} (OP_{self.op.kind}): parameter PM_{key} is missing")
        return value

    def word(self, key: str, table: Mapping[int, str], default: int | None = None) -> str:
        """What the number of a parameter means."""
        value = self.op.get(key)
        value = default if value is None else value
        if value is None or value not in table:
            raise RuleError(
                self.rule,
                f"{self.place} (OP_{self.op.kind}): PM_{key} {value} is none of "
                f"{', '.join(f'{k} ({v})' for k, v in table.items())}",
            )
        return table[value]

    def activate(self, wire: int) -> int:
        """The wire behind the activation that is asked for."""
        f = self.word("ACTI", ACTIVATION, 0)
        return wire if f == "none" else self.add_node(f, (wire,))

    def refuse_lost(self) -> None:
        """`RuleError` for a parameter that nothing would read."""
        op, at = self.op, f"{self.place} (OP_{self.op.kind})"
        known = (*READ.get(op.kind, ()), "NUM_INPUTS", "NUM_OUTPUTS", "NUMDIM")
        unread = [k for k, _ in op.parameters if k not in known]
        if op.get("NUM_OUTPUTS") not in (None, 1) and op.kind != "SPLIT":
            raise RuleError(self.rule, f"{at}: PM_NUM_OUTPUTS {op.get('NUM_OUTPUTS')}; it has one output")
        if self.reading is Reading.FLEXFLOW and op.get("NUMDIM") not in (None, 3):
            raise RuleError(
                self.rule, f"{at}: PM_NUMDIM {op.get('NUMDIM')}; all tensors of FlexFlow's rules have rank 3"
            )
        if op.kind in MEANT and unread:
            raise RuleError(
                self.rule,
                f"{at}: parameter PM_{unread[0]} is not read by this operator, so it would be lost; remove it",
            )

    def wires(self) -> list[int]:
        """Append the nodes; the wires of the outputs."""
        self.refuse_lost()
        op, inputs, add, need = self.op, self.inputs, self.add_node, self.need
        match op.kind:
            case "EW_ADD" | "EW_MUL" | "RELU" | "SIGMOID" | "TANH":
                return [add({**ELEMENTWISE, **MAPS}[op.kind], inputs)]
            case "IDENTITY" | "NOOP":
                return [inputs[0]]
            case "MUL":
                return [add("scale", inputs)]
            case "MATMUL":
                return [self.activate(add("matmul", inputs))]
            case "BATCHMATMUL":
                return [self.activate(add("batch_matmul", inputs))]
            case "LINEAR":
                return [
                    add(
                        "linear3" if self.reading is Reading.FLEXFLOW else "linear",
                        inputs,
                        activation=self.word("ACTI", ACTIVATION, 0),
                    )
                ]
            case "CONV2D":
                return [self._convolution()]
            case "POOL2D_MAX" | "POOL2D_AVG":
                kind = "max_pool" if op.kind == "POOL2D_MAX" else "average_pool"
                sizes = {key.lower(): need(key) for key in ("KERNEL_H", "KERNEL_W", "STRIDE_H", "STRIDE_W")}
                return [self.activate(add(kind, inputs, padding=self.word("PAD", PADDING), **sizes))]
            case "ENLARGE":
                return [add("enlarge", inputs, kernel_h=need("KERNEL_H"), kernel_w=need("KERNEL_W"))]
            case "SOFTMAX" | "LAYERNORM":
                return [add("softmax" if op.kind == "SOFTMAX" else "layer_norm", inputs, axis=need("AXIS"))]
            case "TRANSPOSE":
                return [
                    add("transpose", inputs, perm=_permutation(need("PERM"), need("NUMDIM"), self.rule, self.place))
                ]
            case "CONCAT":
                if len(inputs) < 2:
                    raise RuleError(self.rule, f"{self.place} (OP_CONCAT): needs at least two inputs")
                wire = inputs[0]
                for nxt in inputs[1:]:
                    wire = add("concat", (wire, nxt), axis=need("AXIS"))
                return [wire]
            case "SPLIT":
                if op.outputs != 2:
                    raise RuleError(
                        self.rule, f"{self.place} (OP_SPLIT): {op.outputs} outputs; only splits in two are supported"
                    )
                return [add(which, inputs, axis=need("AXIS")) for which in ("split0", "split1")]
            case "PARTITION" | "COMBINE" | "REPLICATE" | "REDUCE" | "PIPELINE" | "BATCH":
                return [self._parallel()]
            case _:
                known = ", ".join(f"OP_{k}" for k in MEANT)
                raise RuleError(
                    self.rule,
                    f"{self.place}: operator OP_{op.kind} is known to the format but has no meaning here; those that "
                    f"have one: {known}",
                )

    def _convolution(self) -> int:
        if self.op.get("GROUP") is not None:
            raise RuleError(
                self.rule,
                f"{self.place} (OP_CONV2D): PM_GROUP is not read; the group is input channels / weight channels, "
                f"for every group",
            )
        return self.add_node(
            "conv",
            self.inputs,
            stride_h=self.need("STRIDE_H"),
            stride_w=self.need("STRIDE_W"),
            padding=self.word("PAD", PADDING),
            activation=self.word("ACTI", ACTIVATION, 0),
        )

    def _parallel(self) -> int:
        """A partition, or whatever else names a degree of parallelism."""
        stated, kind = self.need("PARALLEL_DEGREE"), self.op.kind
        degree, axis = stated if self.degree is None else self.degree, self.need("PARALLEL_DIM")
        if kind in ("PIPELINE", "BATCH"):
            return self.add_node(kind.lower(), self.inputs, axis=axis, steps=degree)
        word = {"PARTITION": "partition", "COMBINE": "combine", "REPLICATE": "tile", "REDUCE": "block_sum"}[kind]
        return self.add_node(word, self.inputs, axis=axis, degree=degree)


def _permutation(digits: int, rank: int, rule: str, place: str) -> tuple[int, ...]:
    if not 1 <= rank <= 8:
        raise RuleError(rule, f"{place}: PM_NUMDIM {rank}")
    out = []
    for _ in range(rank):
        digits, last = divmod(digits, rank)
        out.append(last)
    perm = tuple(reversed(out))
    if digits or sorted(perm) != list(range(rank)):
        raise RuleError(rule, f"{place}: PM_PERM is no permutation of {rank} axes")
    return perm


def _input_ranks(rule: PublicRule, names: tuple[int, ...]) -> dict[int, int | None]:
    """Rank of each pattern input (None: any), from what the operators fix.  Raises `RuleError` on a contradiction."""
    parent: dict[tuple[int, PublicTensor], tuple[int, PublicTensor]] = {}
    rank: dict[tuple[int, PublicTensor], int] = {}

    def find(t: tuple[int, PublicTensor]) -> tuple[int, PublicTensor]:
        while t in parent:
            t = parent[t]
        return t

    def fix(t: tuple[int, PublicTensor], r: int, place: str) -> None:
        if not 0 <= r <= MOST_RANK:
            raise RuleError(rule.name, f"{place}: a tensor would have rank {r}; at most {MOST_RANK} are read")
        if rank.setdefault(find(t), r) != r:
            raise RuleError(rule.name, f"{place}: a tensor would have ranks {rank[find(t)]} and {r}")

    def join(a: tuple[int, PublicTensor], b: tuple[int, PublicTensor], place: str) -> None:
        a, b = find(a), find(b)
        if a != b:
            parent[a] = b
            if a in rank:
                fix(b, rank[a], place)

    def key(side: int, t: PublicTensor) -> tuple[int, PublicTensor]:
        return (0 if t.operator < 0 else side, t)

    for side, operators in ((1, rule.source), (2, rule.target)):
        for j, op in enumerate(operators):
            place = f"{'srcOp' if side == 1 else 'dstOp'}[{j}] (OP_{op.kind})"
            results = [(side, PublicTensor(j, k)) for k in range(op.outputs)]
            operands = [key(side, t) for t in op.inputs]
            if op.kind in _RANKS:
                for one, r in zip([*operands, *results], _RANKS[op.kind], strict=True):
                    fix(one, r, place)
            elif op.kind == "MUL":
                join(operands[0], results[0], place)
                fix(operands[1], 0, place)
            elif op.kind in _PLAIN:
                for other in (*operands[1:], *results):
                    join(operands[0], other, place)
            said = op.get("NUMDIM")
            if said is not None and operands:
                fix(operands[0], said, place)
                if op.kind == "TRANSPOSE":
                    fix(results[0], said, place)
    for s, t in rule.outputs:
        join(key(1, s), key(2, t), "mappedOutput")
    return {i: rank.get(find((0, PublicTensor(i)))) for i in names}


def _with_kernels(rule: PublicRule, done: Substitution, names: tuple[int, ...]) -> Substitution:
    """Kernel sizes of convolutions, as fixed sizes of the pattern inputs their weights are made of."""
    fixed: dict[int, dict[int, int]] = {}
    for operators in (rule.source, rule.target):
        for op in operators:
            kernel = {
                axis: size for axis, key in ((2, "KERNEL_H"), (3, "KERNEL_W")) if (size := op.get(key)) is not None
            }
            if op.kind != "CONV2D" or not kernel:
                continue
            if min(kernel.values()) < 1:
                raise RuleError(
                    rule.name,
                    f"OP_CONV2D: a kernel of size {min(kernel.values())}; PM_KERNEL_H and PM_KERNEL_W must be at "
                    f"least 1",
                )
            todo = [op.inputs[1]]
            while todo:
                t = todo.pop()
                if t.operator < 0:
                    for axis, size in kernel.items():
                        if fixed.setdefault(t.operator, {}).setdefault(axis, size) != size:
                            raise RuleError(
                                rule.name,
                                f"input {t.operator} is a kernel of sizes {fixed[t.operator][axis]} and {size}",
                            )
                elif operators[t.operator].kind in _PLAIN and operators[t.operator].get("AXIS") not in (2, 3):
                    todo += operators[t.operator].inputs
    inputs = tuple(
        replace(p, fixed=tuple(sorted(fixed[i].items()))) if i in fixed else p
        for i, p in zip(names, done.inputs, strict=True)
    )
    return replace(done, inputs=inputs)
