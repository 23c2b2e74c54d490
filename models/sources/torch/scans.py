"""Writes `torch.scan` out: the operator of an exported program that runs a graph once per slice.

    carry, ys = scan(body, init, xs, more)     carry, y_t = body(carry, xs[t], more);   ys = stack of y_t

Turn by turn, so that every frontend's loop is rolled up the same way (`sources.loops`), with the same tests.  Export
traces the body once; writing it out copies nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .context import TorchError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode

MOST_NODES: Final = 100_000
"""Calls that a scan may become."""


def written_out(exported: ExportedProgram, place: str) -> None:
    """Replace every scan of a program.  Raises `TorchError` if it has too many turns."""
    import torch

    module = exported.graph_module
    found = [n for n in module.graph.nodes if n.target is torch.ops.higher_order.scan]
    for node in found:
        _write_out(module, node, place)
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()


def _write_out(module: GraphModule, scan: FxNode, place: str) -> None:
    import torch

    region, init, xs, *more = scan.args
    body = module.get_submodule(region.target)
    calls = [n for n in body.graph.nodes if n.op == "call_function"]
    inner = [n for n in body.graph.nodes if n.op == "get_attr"]
    turns = xs[0].meta["val"].shape[0]
    if inner or any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in calls):
        raise TorchError(f"node {scan.name!r}", "a loop inside of torch.scan; write the inner one as a loop of Python")
    if turns * len(calls) > MOST_NODES:
        size = f"{turns} iterations and {len(calls)} operators each"
        raise TorchError(place, f"torch.scan of {size}: at most {MOST_NODES} in all; scan over longer slices")
    (result,) = body.graph.find_nodes(op="output")
    placeholders = body.graph.find_nodes(op="placeholder")
    carry, rest = list(init), list(more[0]) if more else []
    seen: list[list[FxNode]] = []
    graph = module.graph
    with graph.inserting_before(scan):

        def call(target: object, *args: object) -> FxNode:
            made = graph.call_function(target, args)
            values = torch.fx.map_arg(args, lambda n: n.meta["val"])
            made.meta["val"] = target(*values)  # type: ignore[operator]
            return made

        for t in range(turns):
            now = [call(torch.ops.aten.select.int, x, 0, t) for x in xs]
            known: dict[FxNode, FxNode] = dict(zip(placeholders, [*carry, *now, *rest], strict=True))
            for n in calls:
                known[n] = graph.node_copy(n, lambda m, known=known: known[m])
            out = [known[n] for n in result.args[0]]
            carry = out[: len(carry)]
            seen.append(out[len(carry) :])
        stacks = []
        for ys in zip(*seen, strict=True):
            shape = list(ys[0].meta["val"].shape)
            rows = list(ys) if shape else [call(torch.ops.aten.unsqueeze.default, y, 0) for y in ys]
            together = call(torch.ops.aten.cat.default, rows)
            stacks.append(call(torch.ops.aten.view.default, together, [turns, *shape]) if shape else together)
    for user in list(scan.users):
        made = [*carry, *stacks][user.args[1]]
        with graph.inserting_before(user):
            same = call(torch.ops.aten.clone.default, made)
        user.replace_all_uses_with(same)
        name = user.name
        graph.erase_node(user)
        same._rename(name)  # the signature names what the user wants
    graph.erase_node(scan)
