"""Reads the FX nodes of an exported PyTorch program as plain data: values, static shapes, arguments, and
the module that each call came from.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .context import Argument, Node, Ref, TorchError
from .layout import HANDLERS as MOVES

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node as FxNode

ALIASES: Final = MappingProxyType({"transformers.grouped_mm_fallback.default": "aten._grouped_mm.default"})
"""Operators of libraries that are ATen's by another name."""


class Reader:
    """The nodes of an exported program.  `live`: calls that contribute to what the user wants, in order; `read`: values
    that they, or the user, read.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.nodes: list[FxNode] = list(exported.graph.nodes)
        self._by_name = {n.name: n for n in self.nodes}
        self.live = self._live()
        calls = [n for n in self.live if getattr(n.target, "__name__", "") != "getitem"]
        self.read = frozenset(self.ref(n) for node in calls for n in node.all_input_nodes) | {
            self.result(o) for o in exported.graph_signature.user_outputs if isinstance(o, str)
        }

    def _live(self) -> list[FxNode]:
        """Calls that contribute to what the user wants, in order."""
        needed = {o for o in self.exported.graph_signature.user_outputs if isinstance(o, str)}
        out: list[FxNode] = []
        for n in reversed(self.nodes):
            if n.name in needed and n.op == "call_function":
                needed.update(m.name for m in n.all_input_nodes)
                out.append(n)
        return out[::-1]

    def ref(self, node: FxNode) -> Ref:
        """The value of a node; `getitem` is a result of another."""
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
            return Ref(node.args[0].name, int(node.args[1]))
        return Ref(node.name)

    def result(self, name: str) -> Ref:
        """The value of a node, by name."""
        return self.ref(self._by_name[name])

    def plain(self, node: FxNode) -> Node:
        """A call as plain data.  Raises `TorchError` for sizes that are not numbers."""
        import torch

        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return Node(getattr(target, "__name__", str(target)), node.name, "", False, {}, ((),), ("float32",))
        names = [a.name for a in target._schema.arguments]
        given = {
            **{a.name: a.default_value for a in target._schema.arguments if a.has_default_value()},
            **dict(zip(names, node.args, strict=False)),
        }
        arguments = {k: self._argument(node, v) for k, v in {**given, **node.kwargs}.items()}
        if target is torch.ops.aten.as_strided.default:
            held = node.args[0].meta["val"]
            arguments |= {"self_strides": tuple(held.stride()), "self_offset": held.storage_offset()}
        results = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
        path, own = self._module(node)
        shapes = tuple(self.shape(node.name, t) for t in results)
        dtypes = tuple(str(getattr(t, "dtype", "torch.float32")).removeprefix("torch.") for t in results)
        kind = ALIASES.get(str(target), str(target))
        return Node(kind, node.name, path, own, arguments, shapes, dtypes)

    def shape(self, name: str, value: object) -> tuple[int, ...]:
        """A static shape."""
        sizes = tuple(getattr(value, "shape", ()))
        for n in sizes:
            if type(n) is not int:
                raise TorchError(
                    f"value {name!r}",
                    f"has the size {n} in shape {list(sizes)}, which depends on the contents of a tensor or is "
                    f"dynamic; give it a static size (pad and mask; export without dynamic_shapes)",
                )
        return sizes

    def _argument(self, node: FxNode, value: object) -> Argument:
        import torch

        match value:
            case torch.fx.Node():
                held = value.meta.get("val")
                if not isinstance(held, (torch.Tensor, tuple, list)):
                    raise TorchError(
                        f"node {node.name!r}",
                        f"reads the number {value.name!r}, which depends on the contents of a tensor; give it a "
                        f"static size",
                    )
                return self.ref(value)
            case bool() | int() | float() | str() | None:
                return value
            case tuple() | list():
                return tuple(self._argument(node, v) for v in value)
            case torch.dtype():
                return str(value).removeprefix("torch.")
            case _:
                return None

    def module(self, node: FxNode) -> str:
        """Path of the innermost module."""
        return self._module(node)[0]

    def _module(self, node: FxNode) -> tuple[str, bool]:
        """Path of the innermost module, and whether it is a layer of PyTorch."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        if not stack:
            return "", False
        path, kind = stack[-1]
        kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        path = re.sub(r"^L\['self'\]\.?|@\d+$", "", path).replace("['", ".").replace("']", "")
        own = kind.startswith("torch.nn.modules.") and not re.search(
            r"container|transformer|MultiheadAttention|LSTM|GRU|RNN", kind
        )
        moves = str(node.target).removeprefix("aten.").partition(".")[0] in MOVES
        return path, not moves and (own or kind.endswith(("Conv1D", "Norm")))
