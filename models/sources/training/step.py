"""From a model to one step of its training: forward, backward, optimizer, in one graph.

    1. a loss is found or added                                                         -> loss.with_loss()
       and the model put into mixed precision, if that is asked for                      -> precision.mixed()
    2. operators that the loss does not need are dropped                                -> needed()
    3. active tensors: floating-point parameters, not frozen, that reach the loss, and what depends on them  -> active()
    4. in reverse order every operator hands the gradient of its output to its inputs   -> rules.differentiate()
       and the gradients may be clipped, and their scale divided out                    -> clipping, scaling
    5. each parameter's update stands right behind the last operator that reads its old value     -> _scheduled()

Outputs: the loss.  The next values of parameters and moments are the graph's `state`.  Gradients that nobody needs are
never written down: inputs are not active.  Repeated layers stay equal up to the prefix of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...program.graph import Graph, GraphError, Role, UnsupportedOperators
from ...program.index import access
from ...program.operators import Operator
from ...program.specified import with_specified
from .. import precision as precisions
from .backward import Backward
from .clipping import clip_gradients, total_of_squares
from .loops import with_kept_carries
from .loss import with_loss
from .optimizers import Update, assign_optimizers, update
from .recompute import Blocks, compute_again, select_blocks
from .rules import differentiate, own_gradient, positions
from .scaling import all_finite, divide_scale, next_scale, scaled_seed
from .settings import Settings, parse_optimizer
from .widened import sum_in_float32, with_arithmetic


@dataclass(frozen=True)
class TrainingStep:
    """`graph`: the whole step.  `loss`: what is minimised, in words.  `trained`: (parameter, its gradient), in graph
    order.  `constant`: parameters that the loss does not depend on smoothly; the step leaves them alone.  `recomputed`:
    blocks whose values the reverse pass computes again.  `passes`: for every operator of the graph its pass ("F", "B",
    "U": forward, backward, update) and the position of the forward operator that it is, or is part of the adjoint of
    (an update: -1)."""

    graph: Graph
    loss: str
    trained: tuple[tuple[str, str], ...]
    constant: tuple[str, ...]
    recomputed: tuple[str, ...] = ()
    passes: tuple[tuple[str, int], ...] = ()


def training_step(graph: Graph, optimizer: str, loss: str | None = None, settings: Settings | None = None) -> Graph:
    """One training step of `graph` with `sgd` or `adam`; see `build_step`.

    >>> from ..zoo import build
    >>> step = training_step(build("mlp-unity"), "sgd")
    >>> step.outputs, step.state
    (('loss',), (('fc1.weight', 'fc1.weight.next'), ('fc2.weight', 'fc2.weight.next')))
    """
    return build_step(graph, optimizer, loss, settings).graph


def build_step(
    graph: Graph,
    optimizer: str,
    loss: str | None = None,
    settings: Settings | None = None,
    recompute: str = "none",
    precision: str | None = None,
    groups: Mapping[str, tuple[str, Settings]] | None = None,
) -> TrainingStep:
    """One training step and what was decided on the way.  `optimizer`: its name, without `settings` perhaps with
    numbers (`settings.parsed`).  `loss`: a scalar of the graph, or None for its output or a default.  `recompute`: see
    `recompute.selected`.  `precision`: see `precision.settings`; None leaves every type as the graph has it.
    `groups`: optimizer and settings of parameters that have their own.

    Raises `GraphError` for a graph that has a state already, without parameters to train or without a possible loss,
    `UnsupportedOperators` listing every operator on the way from a parameter to the loss that has no derivative.
    """
    if graph.state:
        raise GraphError(
            f"graph {graph.name!r}", "is a training step already: leave out --train, or give the forward model"
        )
    whole, scalar, words = with_loss(graph, loss)
    with _named(graph.name, "--precision"):
        types = None if precision is None else precisions.parse_precision(precision)
    forward = _needed_for(scalar, whole if types is None else precisions.mixed_precision(whole, types))
    with _named(graph.name, "--train"):
        named, numbers = parse_optimizer(optimizer) if settings is None else (optimizer, settings)
    chosen_blocks = select_blocks(forward, recompute)
    reached = active(forward, scalar)
    backward = Backward(forward, reached, types is not None)
    backward.seed = backward.emit(
        f"grad:{scalar}", "fill", (), [access(scalar)], (), (("value", 1.0),), forward.tensor(scalar).dtype
    )
    scaled = types is not None and types.has_loss_scale
    backward.gradient[scalar] = scaled_seed(backward) if scaled else backward.seed
    origin = _reverse(backward, forward, chosen_blocks)
    if types is not None and types.reduce == "float32":
        sum_in_float32(backward)
    trained = _trained(backward, forward, graph.name)
    used, finite, state = _used_gradients(backward, trained, types if scaled else None, numbers)
    of = assign_optimizers(forward, [w for w, _ in used], named, numbers) if groups is None else groups
    updates = [
        update(forward.tensor(w), backward.names[w], g, *of.get(w, (named, numbers)), allowed=finite) for w, g in used
    ]
    results = [scalar, *(g for _, g in used), *([finite] if finite else ()), *(value for _, value in state)]
    operators = needed_operators([*forward.operators, *backward.operators], results)
    if types is not None:
        element = {t.name: t.dtype for t in backward.tensors.values()}
        operators = [with_arithmetic(op, element) for op in operators]
    scheduled = _scheduled(operators, list(zip(used, updates, strict=True)), finite)
    kept = {op.output.tensor for op in operators}
    tensors = {n: t for n, t in backward.tensors.items() if t.role is not Role.VALUE or n in kept}
    tensors |= {t.name: t for u in updates for t in u.tensors}
    state = (*(pair for u in updates for pair in u.state), *state)
    name = f"{graph.name}+{optimizer}" + (f"+recompute({','.join(chosen_blocks)})" if chosen_blocks else "")
    name += "" if precision is None else f"+{precision}"
    step = with_specified(Graph(name, tuple(tensors.values()), tuple(scheduled), (scalar,), state).check(), graph)
    constant = tuple(t.name for t in graph.tensors if t.role is Role.PARAMETER and t.name not in dict(trained))
    passes = _passes(forward, origin, scheduled)
    return TrainingStep(step, words, trained, constant, tuple(chosen_blocks), passes)


def _passes(forward: Graph, origin: Mapping[str, int], scheduled: Iterable[Operator]) -> tuple[tuple[str, int], ...]:
    """The pass of every operator, see `TrainingStep`; `origin`: of operators of the backward pass."""
    part_of = {op.name: ("F", i) for i, op in enumerate(forward.operators)}
    part_of |= {name: ("B", i) for name, i in origin.items()}
    return tuple(part_of.get(op.name, ("U", -1)) for op in scheduled)


@contextmanager
def _named(graph: str, option: str) -> Iterator[None]:
    """Within, what an option cannot mean is said of the option."""
    try:
        yield
    except ValueError as error:
        raise GraphError(f"graph {graph!r}", f"{option}: {error}") from None


def _needed_for(scalar: str, whole: Graph) -> Graph:
    """The operators that a loss needs."""
    forward = replace(whole, operators=tuple(needed_operators(whole.operators, [scalar])), specified=())
    live = {op.output.tensor for op in forward.operators}
    forward = replace(forward, tensors=tuple(t for t in whole.tensors if t.role is not Role.VALUE or t.name in live))
    return with_kept_carries(forward).check()


Pairs = tuple[tuple[str, str], ...]
"""(parameter, its gradient), or (stored tensor, its next value)."""


def _trained(backward: Backward, forward: Graph, name: str) -> Pairs:
    """The parameters that have a gradient.  Raises `GraphError` if there are none."""
    trained = tuple(
        (t.name, backward.gradient[t.name])
        for t in forward.tensors
        if t.role is Role.PARAMETER and t.name in backward.gradient
    )
    if not trained:
        raise GraphError(
            f"graph {name!r}",
            "has no floating-point parameter that the loss depends on: nothing to train; leave out --train to "
            "plan it as it is",
        )
    return trained


def _used_gradients(
    backward: Backward, trained: Pairs, scaled: precisions.Precision | None, numbers: Settings
) -> tuple[Pairs, str, Pairs]:
    """(gradients that the optimizer takes, what says that all are finite, the next loss scale); `scaled`: the
    precision, where gradients have a loss scale in them.
    """
    used, finite, known = trained, "", ""
    state: Pairs = ()
    if scaled is not None:
        used = tuple(divide_scale(backward, trained))
        known = total_of_squares(backward, used)
        finite = all_finite(backward, known)
    if numbers.clip is not None:
        used = tuple(clip_gradients(backward, used, numbers.clip, known))
    if scaled is not None:
        state = next_scale(backward, finite, scaled)
    return used, finite, state


def needed_operators(operators: Iterable[Operator], results: Iterable[str]) -> list[Operator]:
    """The operators that the results depend on, in order."""
    wanted, kept = set(results), []
    for op in reversed(list(operators)):
        if op.output.tensor in wanted:
            kept.append(op)
            wanted.update(a.tensor for a in op.inputs)
    return kept[::-1]


def active(graph: Graph, loss: str, place: Callable[[Operator], str] = lambda op: op.name) -> set[str]:
    """Tensors on a differentiable way from a parameter to the loss.

    Raises `UnsupportedOperators` with the `place` of every operator on such a way that has no derivative.
    """
    depends = {
        t.name
        for t in graph.tensors
        if t.role is Role.PARAMETER and not t.frozen and t.dtype.startswith(("float", "bfloat"))
    }
    missing: dict[str, list[str]] = {}
    for op in graph.operators:
        carrying = positions(op)
        if carrying is None:
            if any(a.tensor in depends for a in op.inputs):
                for words in own_gradient(op) or (op.function,):
                    missing.setdefault(words, []).append(place(op))
                depends.add(op.output.tensor)
        elif any(op.inputs[j].tensor in depends for j in carrying) and graph.tensor(op.output.tensor).dtype.startswith(
            ("float", "bfloat")
        ):
            depends.add(op.output.tensor)
    if missing:
        raise UnsupportedOperators(
            missing, "these functions have no derivative here: see models/sources/training/rules.py"
        )
    reaches = {loss}
    for op in reversed(graph.operators):
        if op.output.tensor in reaches and op.output.tensor in depends:
            reaches.update(op.inputs[j].tensor for j in positions(op) or ())
    return depends & reaches


def _reverse(b: Backward, graph: Graph, again: Blocks) -> dict[str, int]:
    """Differentiate in reverse order; a tensor is finished after the first of its readers, weights before activations.

    Blocks of `again` are computed once more right before their first adjoint.  Returned: every operator emitted so far,
    and the position of the forward operator that it belongs to.
    """
    origin = {op.name: len(graph.operators) - 1 for op in b.operators}
    block_of = {i: name for name, at in again.items() for i in at}
    waiting = set(again)
    position = {op.name: i for i, op in enumerate(graph.operators)}
    first: dict[str, int] = {}
    for i, op in enumerate(graph.operators):
        for a in op.inputs:
            first.setdefault(a.tensor, i)
    for i, op in reversed(list(enumerate(graph.operators))):
        if op.output.tensor in b.gradient:
            if block_of.get(i) in waiting:
                waiting.remove(block_of[i])
                compute_again(b, again[block_of[i]])
            differentiate(b, op)
        done = [t for t in dict.fromkeys(a.tensor for a in op.inputs) if first[t] == i and t in b.active]
        for t in sorted(done, key=lambda t: graph.tensor(t).role is not Role.PARAMETER):
            b.finish(t)
        for more in b.operators[len(origin) :]:  # where a parameter was read, there its gradient is made
            origin[more.name] = position.get(b.adjoint_of.get(more.name, ""), i)
    return origin


def _scheduled(
    operators: list[Operator], updates: list[tuple[tuple[str, str], Update]], allowed: str = ""
) -> list[Operator]:
    """The operators with every update behind its gradient, what allows it, and the last reader of its parameter."""
    last = {op.output.tensor: i for i, op in enumerate(operators)}
    for i, op in enumerate(operators):
        for a in op.inputs:
            last[a.tensor] = i
    behind: dict[int, list[Operator]] = {}
    writer = {op.output.tensor: i for i, op in enumerate(operators)}
    for (weight, gradient), u in updates:
        behind.setdefault(max(writer[gradient], last[weight], writer.get(allowed, 0)), []).extend(u.operators)
    return [x for i, op in enumerate(operators) for x in (op, *behind.get(i, ()))]
