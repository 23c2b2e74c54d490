"""Training steps that users write: `x.requires_grad_()`, `loss.backward()`, `x.grad`, in the words of
PyTorch.

A call of `backward` differentiates what has been recorded so far, with the rules of `models.sources.training`:

    leaves      arrays marked by `requires_grad_`, as they are now: the recorded operators between them and the loss are
                differentiated, what made a leaf is not
    forwarded   the reverse pass reads the values of the forward pass, whatever buffers hold by now
    grad        the first gradient is the buffer; a later one is added, unless the buffer was set to zero in between or
                is None again:  neither zeros nor the addition are recorded where one backward pass alone writes the
                buffer

`y.backward(dy)` starts from dy instead of 1.  Several calls, also between updates of the leaves, are several reverse
passes.

Source: thesis on automatic partitioning of array programs, sections 7.2 and 7.3.
"""

from __future__ import annotations

from dataclasses import replace

from ...program.graph import Graph, Role
from ...program.index import access
from ...program.operators import Operator
from ..training.backward import Backward
from ..training.rules import differentiate
from ..training.step import active
from .array import METHODS, Buffer, TracedArray
from .contract import product
from .elementwise import elementwise, view_of
from .recorder import Recorder, TraceError, place
from .views import View, broadcast
from .write import materialise


def requires_grad(array: TracedArray) -> TracedArray:
    """Mark an array of floats as a leaf.  Raises `TraceError` for a part of another array."""
    if not array.region.identity or not isinstance(array.cell, Buffer):
        raise TraceError(place(), "requires_grad_ needs an array of its own, not a part of another; copy it first")
    if array.dtype.kind != "f":
        raise TraceError(place(), f"requires_grad_ needs an array of floats, not {array.dtype.name}")
    if not any(leaf is array for leaf in array.recorder.leaves):
        array.recorder.leaves.append(array)
    return array


def backward(array: TracedArray, gradient: object = None) -> None:
    """Accumulate the gradients of all leaves that `array` depends on.  Raises `TraceError`, or
    `UnsupportedOperators` for functions without a derivative.
    """
    recorder = array.recorder
    leaves: list[TracedArray] = []
    for leaf in recorder.leaves:
        if not isinstance(leaf, TracedArray) or not isinstance(leaf.cell, Buffer):
            raise TraceError(place(), "a leaf is not an array")
        leaf.cell.value = materialise(recorder, leaf.cell.value)
        leaves.append(leaf)
    loss = _scalar(recorder, array, gradient)
    forward = _forward(recorder, loss.tensor, {leaf.view.tensor for leaf in leaves})
    at = place()  # the line that called backward: found from the stack, so before other modules are on it
    reached = active(forward, loss.tensor, lambda _: at)
    found = [leaf for leaf in leaves if leaf.view.tensor in reached]
    if not found:
        raise TraceError(place(), "backward: the array depends on no array that requires_grad_ marked")
    b = Backward(forward, reached)
    b.seed = b.emit(
        f"grad:{loss.tensor}",
        "fill",
        (),
        [access(loss.tensor)],
        (),
        (("value", 1.0),),
        forward.tensor(loss.tensor).dtype,
    )
    b.gradient[loss.tensor] = b.seed
    _reverse(b, forward)
    names = {t.name: t.name for t in forward.tensors}
    for op in b.operators:
        names[op.name] = recorder.add(
            _renamed(op, names), b.tensors[op.output.tensor].shape, b.tensors[op.output.tensor].dtype
        )
    for leaf in found:
        _accumulate(leaf, recorder.plain(names[b.gradient[leaf.view.tensor]]))


def _scalar(recorder: Recorder, array: TracedArray, gradient: object) -> View:
    """The scalar that is differentiated: the array, or its product with the given gradient."""
    view = array.view
    if gradient is not None:
        given = broadcast(view_of(recorder, gradient), view.shape)
        letters = [f"i{k}" for k in range(len(view.shape))]
        return product(recorder, "weighted", [view, given], [letters, letters], [])
    if view.shape:
        raise TraceError(
            place(), f"backward of an array of shape {view.shape} needs the gradient to start from: y.backward(dy)"
        )
    return materialise(recorder, view)


def _forward(recorder: Recorder, loss: str, leaves: set[str]) -> Graph:
    """The recorded operators between the leaves and the loss."""
    wanted, kept = {loss}, []
    for made in reversed(recorder.made):
        if made.output.tensor in wanted and made.output.tensor not in leaves:
            kept.append(
                Operator(made.output.tensor, made.function, made.axes, made.inputs, made.output, made.attributes)
            )
            wanted.update(a.tensor for a in made.inputs)
    written = {op.output.tensor for op in kept}
    tensors = [
        replace(t, role=Role.VALUE if n in written else Role.PARAMETER if n in leaves else Role.INPUT)
        for n, t in recorder.tensors.items()
        if n in wanted
    ]
    return Graph("forward", tuple(tensors), tuple(kept[::-1]), (loss,)).check()


def _reverse(b: Backward, graph: Graph) -> None:
    """Reverse order; the gradient of a tensor is complete after the first of its readers."""
    first: dict[str, int] = {}
    for i, op in enumerate(graph.operators):
        for a in op.inputs:
            first.setdefault(a.tensor, i)
    for i, op in reversed(list(enumerate(graph.operators))):
        if op.output.tensor in b.gradient:
            differentiate(b, op)
        for t in dict.fromkeys(a.tensor for a in op.inputs):
            if first[t] == i and t in b.active:
                b.finish(t)


def _renamed(op: Operator, names: dict[str, str]) -> Operator:
    return replace(op, inputs=tuple(replace(a, tensor=names[a.tensor]) for a in op.inputs))


def _accumulate(leaf: TracedArray, gradient: View) -> None:
    """Write the gradient buffer, or add to it."""
    recorder = leaf.recorder
    if leaf.grad is None:
        leaf.grad = TracedArray.of(recorder, gradient)
        return
    buffer = leaf.grad.cell
    if not isinstance(buffer, Buffer):
        raise TraceError(place(), "the gradient buffer was replaced by a part of another array")
    zero = buffer.value.tensor in recorder.zeros
    buffer.value = gradient if zero else elementwise(recorder, "add", "grad", [buffer.value, gradient], leaf.dtype)


METHODS["requires_grad_"] = requires_grad
METHODS["backward"] = backward
