"""Traces a PyTorch module for its stages, and finds what every call gives; it is copied into exported files.

Modules that have parameters stay whole, so they keep their names and hooks.  Tables that are made of numbers alone, and
buffers, stay calls: torch.fx runs them, and keeps what they gave in the precision and on the device of that time.
Where a module branches on a table or writes on it in place, torch.fx has its way: it keeps what the table is last.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TABLES = (
    *(torch.arange, torch.linspace, torch.logspace, torch.zeros, torch.ones, torch.full, torch.eye),
    *(torch.tril_indices, torch.triu_indices),
)


class _Tables(TorchFunctionMode):  # type: ignore[misc]
    """Tensors that are made of numbers alone stay calls of the stage; torch.fx runs them, and keeps what they gave in
    the precision of that time.
    """

    def __init__(self, tracer: fx.Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in TABLES:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Calls(fx.Tracer):  # type: ignore[misc]
    """Keeps modules of torch, and those that have parameters and no modules of their own; buffers are read by name."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        alone = next(module.children(), None) is None and next(module.parameters(recurse=False), None) is not None
        return alone or bool(super().is_leaf_module(module, name))


class _Fixed(_Calls):
    """Buffers as they are now, as torch.fx does by itself."""

    proxy_buffer_attributes = False


class _Effects(TorchDispatchMode):  # type: ignore[misc]
    """Storages that are written in place, and random numbers that are drawn, while it is entered."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, torch.UntypedStorage] = {}
        self.drawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **(kwargs or {}))
        self.drawn += torch.Tag.nondeterministic_seeded in func.tags
        given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **(kwargs or {})}
        for a in func._schema.arguments:
            if a.alias_info is not None and a.alias_info.is_write:
                self.written |= _storages(given.get(a.name))  # held: another's address is another's
        return func(*args, **(kwargs or {}))


def _storages(value: Any) -> dict[int, torch.UntypedStorage]:
    held = [v.untyped_storage() for v in tree_leaves(value) if isinstance(v, torch.Tensor)]
    return {s._cdata: s for s in held}


class _Values(fx.Interpreter):  # type: ignore[misc]
    """Remembers what every call gives, and those that draw random numbers."""

    def __init__(self, module: nn.Module, effects: _Effects) -> None:
        super().__init__(module)
        self.effects = effects
        self.found: dict[fx.Node, Any] = {}
        self.random: set[fx.Node] = set()

    def run_node(self, node: fx.Node) -> Any:
        before = self.effects.drawn
        self.found[node] = super().run_node(node)
        if self.effects.drawn != before:
            self.random.add(node)
        return self.found[node]


class Walk(NamedTuple):
    """`values`: what every call of `graph` gives, as fake tensors; `changing`: those of which another call gives
    something else, as they are written in place or drawn.
    """

    graph: fx.Graph
    values: dict[fx.Node, Any]
    changing: set[fx.Node]


def _walk(module: nn.Module, graph: fx.Graph, given: Mapping[str, Any]) -> Walk:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad(), _Effects() as effects:
        ready = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        walk = _Values(fx.GraphModule(module, graph), effects)
        walk.run(*(ready.get(str(n.target), None) for n in graph.nodes if n.op == "placeholder"))
    same = {b: a for a, b in zip(graph.nodes, walk.module.graph.nodes, strict=True)}
    values = {same[n]: value for n, value in walk.found.items()}
    written = {n for n, value in values.items() if _storages(value).keys() & effects.written.keys()}
    return Walk(graph, values, written | {same[n] for n in walk.random})


def walk_module(module: nn.Module, given: Mapping[str, Any], left: Mapping[str, Any]) -> Walk:
    """What the module calls; `given`: arguments of the example, `left`: others with their defaults.  Raises ValueError
    where torch.fx cannot trace it, and where it draws random numbers while it is traced.
    """
    walk = _walk(module, _traced(_Calls(), module, left), {**given, **left})
    if _of_numbers(walk.graph) & walk.changing:
        return _walk(module, _traced(_Fixed(), module, left), {**given, **left})
    return walk


def _of_numbers(graph: fx.Graph) -> set[fx.Node]:
    """Calls that depend on no input, parameter or buffer."""
    found: set[fx.Node] = set()
    for n in graph.nodes:
        if n.op in ("call_function", "call_method") and all(a in found for a in n.all_input_nodes):
            found.add(n)
    return found


def _traced(tracer: fx.Tracer, module: nn.Module, left: Mapping[str, Any]) -> fx.Graph:
    """The module's calls; `left`: arguments that are not given.  A module that branches or writes on what it made of
    numbers is traced with these as torch.fx keeps them.
    """
    fixed = isinstance(tracer, _Fixed)
    try:
        with _Effects() as effects, nullcontext() if fixed else _Tables(tracer):
            graph = tracer.trace(module, concrete_args=dict(left) or None)
    except Exception as error:
        if not fixed:
            return _traced(_Fixed(), module, left)
        raise ValueError(
            f"torch.fx cannot trace the module ({type(error).__name__}: {error}); write its forward without branches "
            f"that depend on values, or hand over a module that is traced"
        ) from error
    if effects.drawn:
        raise ValueError(
            "the module draws random numbers while it is traced, the same for all steps: make them an input"
        )
    for node in list(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "").startswith("_assert"):
            graph.erase_node(node)  # what fx adds for arguments that are not given
    return graph


def has_tensors(value: Any) -> bool:
    """Whether a call gives tensors."""
    return any(isinstance(v, torch.Tensor) for v in tree_leaves(value))
