"""Where a program stops gradients: `detach`, and regions under `torch.no_grad`.

    y = detach(x)        y is x, and a training step hands no gradient from y to x

What depends on no weight has no gradient to stop, so there nothing is added.  A reentrant checkpoint runs its function
without gradients and again with them: here it is the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...program.graph import Role
from ...program.index import Axis, access
from ...program.operators import Value
from ..building.flat import letters, pointwise
from ..training.rules import OWN
from .context import Context, Handler, Node
from .pointwise import identity

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@contextmanager
def plain_checkpoints() -> Iterator[None]:
    """Within, `torch.utils.checkpoint.checkpoint(.., use_reentrant=True)` calls its function, which has gradients."""
    from torch.utils.checkpoint import CheckpointFunction

    def call(function: Callable[..., object], _: bool, *args: object) -> object:
        return function(*args)

    CheckpointFunction.apply = staticmethod(call)
    try:
        yield
    finally:
        del CheckpointFunction.apply


def mark_regions(exported: ExportedProgram) -> None:
    """Detach the results of regions under `torch.no_grad`, which the decomposition merges into the program."""
    import torch

    for module in exported.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled or node.args[0]:
                continue
            region = module.get_submodule(node.args[1].target)
            (result,) = region.graph.find_nodes(op="output")
            with region.graph.inserting_before(result):
                result.args = torch.fx.map_arg(
                    result.args, lambda n, g=region.graph: g.call_function(torch.ops.aten.detach.default, (n,))
                )
            region.recompile()


def detach(c: Context, node: Node) -> None:
    """The operand, without a gradient."""
    x = node.ref("self")
    if x in c.constants or not _trained(c, c.tensor(x)):
        identity(c, node)
        return
    c.put(node, pointwise(c, node, "", "stop_gradient", [c.operand(x)], node.dtype))


def mark_gradient(c: Context, tensor: str, own: Sequence[str]) -> str:
    """The value with the words of what has a gradient of its own; itself where it depends on no weight."""
    if not _trained(c, tensor):
        return tensor
    shape, names = c.g.tensors[tensor].shape, letters(len(c.g.tensors[tensor].shape))
    name = c.unique(f"{tensor}.own_gradient")
    c.where[name] = c.where.get(tensor, "")
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    given: dict[str, Value] = {OWN: tuple(own)}
    return c.g.operator(name, "stop_gradient", axes, [access(tensor, *names)], names, given, c.g.tensors[tensor].dtype)


def _trained(c: Context, tensor: str) -> bool:
    """Does a value depend on a weight?"""
    writer = {op.output.tensor: op for op in c.g.operators}
    seen, waiting = {tensor}, [tensor]
    while waiting:
        name = waiting.pop()
        if c.g.tensors[name].role is Role.PARAMETER:
            return True
        more = {a.tensor for a in writer[name].inputs} - seen if name in writer else set()
        seen |= more
        waiting += more
    return False


HANDLERS: dict[str, Handler] = dict.fromkeys(("detach", "detach_copy"), detach)
