r"""Reads degrees of another framework as splits of the operators of a transformer, of the zoo or the user's
own, by the roles of their axes (`roles`).

    tensor      the first of heads (h; where the graph has none, keys' heads k, then their groups g), feed-forward
                width f, vocabulary v that an operator has, over tp; keys of fewer heads than tp are held by several;
                operators without such an axis are whole, or split along the sequence with sequence parallelism
    context     the sequence of the queries s over cp; where only keys are (t), those
    experts     e over ep, which is part of the copies, of what computes with the experts (has f); what routes tokens,
                sends them and takes them back, splits the tokens over all copies
    data        the batch b over the copies
A sequence that an operator needs whole (places of tokens are counted along it) stays whole.

Ranks are numbered as Megatron numbers them: tensor innermost, then context, then experts, then data, so that degrees
fill the machine's levels from the inside.  Only operators of the forward pass are placed; with nothing sharded over
copies, the optimizer's are too (along tp and ep alone).  What is not named is the solver's to complete, in the
framework's favour.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from typing import Final

from ...layout.targets.degrees import Flags
from ...machine.machine import Machine
from ...program.graph import Graph
from ...program.operators import NodeKind, Operator
from ...text import InputError
from ..training.derived import derived_keys
from .roles import Roles, roles

Split = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""axis -> level -> degree."""

Degrees = tuple[int, ...]
"""Of every level of the machine, outermost first."""

_TENSOR: Final = (("h",), ("k", "g"), ("f",), ("v",))
"""Roles over which tensor parallelism goes, the first that an operator has."""

_HEADS: Final = ("h", "k", "g")
_SPLIT: Final = (*_HEADS, "f", "v")
_OPTIMIZER: Final = ".next"


def splits(flags: Flags, graph: Graph, machine: Machine) -> tuple[tuple[str, Split], ...]:
    """Operator -> split, for the operators that the configuration decides.

    Raises `InputError` for pipelines (no placement of operators says them), degrees that do not fit the machine, and a
    graph whose operators have no roles.
    """
    if flags.pp > 1:
        raise InputError(
            f"{flags.source}: pp {flags.pp} is a schedule, not a placement; audit a training step, audit --train adam, "
            f"or one stage: the model with its share of the layers on {machine.devices} / {flags.pp} devices"
        )
    copies = flags.copies(machine.devices)
    if copies % flags.ep:
        raise InputError(f"{flags.source}: ep {flags.ep} does not divide the {copies} copies")
    found = _roles(flags, graph)
    tensor, context, experts, rest = nested_degrees(machine, flags, copies)
    later = derived_keys(graph)
    out = []
    for op in graph.operators:
        optimizer = op.name in later and op.name.endswith(_OPTIMIZER)
        if op.name in later and not (optimizer and flags.zero == 0):
            continue
        letters = found.letters[op.name]
        if flags.width_open and flags.tp > 1 and not set(_SPLIT) & set(letters.values()):
            continue
        split = _split(op, flags, letters, (tensor, context, experts, rest), optimizer)
        out.append((op.name, tuple((a, _levels(machine, d)) for a, d in split if any(n > 1 for n in d))))
    return tuple(out)


def shares(flags: Flags, graph: Graph, batches: int) -> dict[str, dict[str, int]]:
    """Operator -> axis -> parts, for every operator of a step and one stage of a configuration, its stages left aside.

    Rows of a grouped product are those that came to the experts that are here, as many as a device sent; gradients are
    split as what they are gradients of; the batch into `batches` parts.  Context parallelism is taken as balanced:
    every device has as many pairs of query and key, as zigzag or an exchange of heads gives it.
    Raises `InputError` for degrees that do not divide their axes.

    >>> from ..zoo import build
    >>> found = shares(Flags("Megatron", tp=4, pp=2), build("llama", layers=2, batch=8, sequence=64), 8)
    >>> found["layer0.ffn.down"], found["layer1.ffn.norm"]
    ({'f': 4, 'b': 8}, {'b': 8})
    """
    found = _roles(flags, graph)
    if batches % flags.ep:
        raise InputError(f"{flags.source}: ep {flags.ep} does not divide {batches} parts of the batch")
    out = {}
    for op in graph.operators:
        letters = found.letters[op.name]
        tensor, context = flags.tp, flags.cp
        rows_of_heads = prod(a.extent for a in op.axes if letters.get(a.name) in _HEADS)
        if op.kind is NodeKind.ATTENTION and rows_of_heads % (tensor * context) == 0:
            tensor, context = tensor * context, 1
        rows = batches if op.kind is NodeKind.GROUPED else batches // flags.ep  # which came to their experts
        degrees = ((tensor,), (context,), (flags.ep,), (rows,))
        split = _split(op, flags, letters, degrees, op.name.endswith(_OPTIMIZER))
        out[op.name] = {a: d for a, (d,) in split if d > 1}
    return out


def _roles(flags: Flags, graph: Graph) -> Roles:
    """The roles that the degrees ask for.  Raises `InputError` that names what has none."""
    found = roles(graph)
    lacks = {letter for letter, ways in (("s", flags.cp > 1 or flags.sequence_parallel), ("m", flags.tp > 1)) if ways}
    if "b" not in found.letters_present:
        raise InputError(
            f"{flags.source}: the batch of {graph.name} is not recognised: its inputs have no first dimension that "
            "runs through the program; write a strategy file for this model"
        )
    if lacks - found.letters_present:
        raise InputError(
            f"{flags.source}: no attention is recognised in {graph.name} (a softmax of products of two values, times a "
            "third, with projections by weights), which tensor, sequence and context parallelism are about; write a "
            "strategy file for this model"
        )
    if flags.tp > 1 and found.unknown:
        more = f" ({len(found.unknown) - 1} more)" if len(found.unknown) > 1 else ""
        raise InputError(
            f"{flags.source}: operator {found.unknown[0]!r}{more} is no projection of attention, feed-forward, expert, "
            "router, embedding or head that tensor parallelism splits; write a strategy file for this model"
        )
    return found


def nested_degrees(machine: Machine, flags: Flags, copies: int) -> tuple[Degrees, Degrees, Degrees, Degrees]:
    """Degrees of tensor, context, experts and the other copies over the levels, filled from the inside.

    >>> from ...machine.machine import load_machine
    >>> nested_degrees(load_machine("dgx-a100:4x8"), Flags("Megatron", tp=4, cp=4), 2)
    ((1, 4), (2, 2), (1, 1), (2, 1))
    """
    left = [level.size for level in machine.levels]
    found = []
    for name, ways in (("tp", flags.tp), ("cp", flags.cp), ("ep", flags.ep), ("data", copies // flags.ep)):
        degrees = [1] * len(left)
        rest = ways
        for j in reversed(range(len(left))):
            degrees[j] = gcd(rest, left[j])
            rest //= degrees[j]
            left[j] //= degrees[j]
        if rest > 1:
            raise InputError(
                f"{flags.source}: {name} {ways} does not fit the levels "
                f"{' x '.join(str(level.size) for level in machine.levels)} of {machine.name}"
            )
        found.append(tuple(degrees))
    return found[0], found[1], found[2], found[3]


def _split(
    op: Operator,
    flags: Flags,
    letters: Mapping[str, str],
    degrees: tuple[Degrees, Degrees, Degrees, Degrees],
    optimizer: bool,
) -> list[tuple[str, Degrees]]:
    tensor, context, experts, rest = degrees
    extents = {a.name: a.extent for a in op.axes if a.splittable or letters.get(a.name) not in ("s", "t")}
    axes = {letter: tuple(a for a in extents if letters.get(a) == letter) for letter in (*_SPLIT, "s", "t", "e", "b")}
    out: list[tuple[str, Degrees]] = []
    group = next((g for g in _TENSOR if axes[g[0]]), ())
    split_rows = False
    if group:
        over = tuple(a for letter in group for a in axes[letter])
        out += _over(op, over, extents, tensor, whole=group[0] != "k" or bool(axes["g"]))
    elif flags.sequence_parallel and not optimizer and axes["s"]:
        out += _over(op, axes["s"], extents, _times(tensor, context))
        split_rows = True
    inside = bool(axes["e"] and axes["f"])
    if inside:
        out += _over(op, axes["e"], extents, experts)
    if optimizer:
        return out
    sequence = axes["s"] or axes["t"]
    if sequence and not split_rows:
        out += _over(op, sequence, extents, context)
    if axes["b"]:
        out += _over(op, axes["b"], extents, rest if inside else _times(experts, rest))
    return out


def _times(left: Degrees, right: Degrees) -> Degrees:
    return tuple(a * b for a, b in zip(left, right, strict=True))


def _over(
    op: Operator, axes: tuple[str, ...], extents: dict[str, int], degrees: Degrees, whole: bool = True
) -> list[tuple[str, Degrees]]:
    """`degrees` over the first axis as far as it divides, the rest over the next; what is left replicates unless
    `whole`.
    """
    left, out = list(degrees), []
    for axis in axes:
        room, mine = extents.get(axis, 1), [1] * len(left)
        for j in reversed(range(len(left))):
            mine[j] = gcd(room, left[j])
            room //= mine[j]
            left[j] //= mine[j]
        out.append((axis, tuple(mine)))
    if whole and any(n > 1 for n in left):
        ways = " x ".join(str(n) for n in degrees)
        sizes = ", ".join(f"{a} {extents.get(a, 1)}" for a in axes)
        raise InputError(
            f"operator {op.name!r}: {ways} ways do not divide its {sizes}; take another batch or other degrees"
        )
    return out


def _levels(machine: Machine, degrees: Degrees) -> tuple[tuple[str, int], ...]:
    return tuple((level.name, n) for level, n in zip(machine.levels, degrees, strict=True) if n > 1)
