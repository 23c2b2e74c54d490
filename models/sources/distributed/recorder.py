"""Writes down what a PyTorch program computes while it runs: every operator below autograd, without views and without
writing in place (`storage`), in the words of `models.equality.program`.

An operator that these words do not have is taken apart by PyTorch's own tables; what is left is refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...equality.captured import Unreadable
from ...equality.program import Described, Source, Step, Word
from . import operators
from .apart import PARTS
from .collectives import record
from .pairs import PAIRS
from .shared import beside
from .storage import Memory, Ref, View, dtype_of, numbers_of, shape_of
from .views import of_pairs
from .views import views as views_of
from .waits import Waits
from .windows import NotKnown

OURS = tuple({str(p.parents[3]) + "/" for p in (Path(__file__), Path(__file__).resolve())})
TORCH = str(Path(torch.__file__).parent) + "/"
RANDOM = frozenset(
    {
        *(
            "bernoulli",
            "native_dropout",
            "rand",
            "randn",
            "randint",
            "rand_like",
            "randn_like",
            "randint_like",
            "normal",
        ),
        *("uniform", "multinomial", "randperm", "exponential", "random", "dropout", "_fused_dropout", "geometric"),
    }
)
FACTORIES = frozenset(
    {
        *("zeros", "ones", "full", "empty", "arange", "eye", "scalar_tensor", "linspace", "zeros_like", "ones_like"),
        *("full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
        *("empty_strided", "lift_fresh", "tril_indices", "triu_indices", "iota"),
    }
)
COPIES = frozenset({"clone", "lift_fresh_copy", "contiguous", "_to_copy", "convert_element_type", "copy"})
WRITES = frozenset({"copy_", "fill_", "zero_"})
SAME = frozenset(
    {
        *("detach", "alias", "lift", "detach_", "set_data", "view_of", "_has_same_storage_numel"),
        *("view_as_real", "view_as_complex"),
    }
)


class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """While it is entered, operators are written down."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = list[Step]()
        self.tensors = list[Described]()
        self.sources = list[Source]()
        self.arrays: dict[int, torch.Tensor] = {}
        self.received: dict[int, torch.Tensor] = {}
        self.fixed = set[int]()
        self.frozen, self.written = set[int](), set[int]()
        self.under_way = set[tuple[object, int]]()
        self.memory = Memory(self._emit)
        self.waits = Waits()

    # ------------------------------------------------------------------ what others write

    def step(
        self, name: str, reads: tuple[int, ...], words: Mapping[str, Word], made: Sequence[tuple[tuple[int, ...], Any]]
    ) -> tuple[int, ...]:
        """A step; the numbers of what it makes, which have these shapes and element types."""
        described = tuple(Described(tuple(s), str(d).removeprefix("torch.")) for s, d in made)
        return self._emit(name, reads, tuple(words.items()), described)

    def _emit(
        self, name: str, reads: tuple[int, ...], words: tuple[tuple[str, Word], ...], made: tuple[Described, ...]
    ) -> tuple[int, ...]:
        first = len(self.tensors)
        self.tensors += made
        numbers = tuple(range(first, first + len(made)))
        self.steps.append(Step(name, reads, numbers, words, self.place()))
        if name not in ("recv",) and "ranks" not in dict(words) and all(r in self.fixed for r in reads):
            self.fixed.update(numbers)
        return numbers

    def source(self, tensor: torch.Tensor, name: str, kind: str) -> int:
        """A tensor that is given."""
        number = len(self.tensors)
        self.tensors.append(Described(shape_of(tensor), dtype_of(tensor)))
        self.sources.append(Source(number, name, kind))
        self.arrays[number] = numbers_of(tensor.detach()).clone()
        if kind == "constant":
            self.fixed.add(number)
        self.memory.bind(tensor, number)
        return number

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's value; one that was never made is a constant."""
        self.waits.read(tensor, self.place)
        return self.memory.read(self.ref(tensor))

    def ref(self, tensor: torch.Tensor) -> Ref:
        """What is known of a tensor."""
        ref = self.memory.find(tensor)
        if ref is None and tensor.untyped_storage()._cdata in self.memory.storages:
            ref = beside(self, tensor)
            if ref is None:
                raise Unreadable(f"a view that no view operator made, {self.place()}")
        if ref is None:
            with torch.utils._python_dispatch._disable_current_modes():
                many = sum(s.kind == "constant" for s in self.sources)
                self.source(tensor, f"constant {many}", "constant")
            ref = self.memory.find(tensor)
        if ref is None:
            raise Unreadable(f"a tensor that is not known, {self.place()}")
        return ref

    def free(self, storage: torch.UntypedStorage) -> None:
        """Memory is given back: what it holds later is not what it held."""
        self.memory.free(storage._cdata)

    def write(self, tensor: torch.Tensor, number: int) -> None:
        """A tensor holds another value from now on."""
        storage = tensor.untyped_storage()._cdata
        if storage in self.frozen:
            raise Unreadable(f"writes into a tensor of which there is an unknown view ({self.place()})")
        self.written.add(storage)
        self.waits.write(tensor, self.place)
        self.memory.write(self.ref(tensor), number)

    def bind(self, tensor: object, number: int) -> None:
        """A new tensor holds a value."""
        if not isinstance(tensor, torch.Tensor):
            raise Unreadable(f"an operator that makes no tensor, {self.place()}")
        self.waits.make(tensor)
        self.memory.bind(tensor, number)

    def reshape(self, number: int, shape: tuple[int, ...], dtype: object) -> int:
        """A value in another shape."""
        if self.tensors[number].shape == shape:
            return number
        return self.step("reshape", (number,), {"shape": shape}, ((shape, dtype),))[0]

    def stack(self, tensors: Sequence[torch.Tensor]) -> int:
        """Values of one shape, one behind another in a new first dimension."""
        one = tuple(tensors[0].shape)
        parts = tuple(self.reshape(self.number(t), (1, *one), t.dtype) for t in tensors)
        made = (((len(tensors), *one), tensors[0].dtype),)
        return self.step("cat", parts, {"dim": 0}, made)[0]

    def place(self) -> str:
        """The user's line that is being run."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            theirs = not file.startswith(("<", TORCH, *OURS)) and not file.endswith("/typing_extensions.py")
            if theirs or "/tests/" in file:
                return f"{Path(file).name}:{frame.f_lineno}"
            if frame.f_back is None:
                return ""
            frame = frame.f_back
        return ""

    # ------------------------------------------------------------------ operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if shapes_only(args, kwargs):  # DTensor asks what shapes come out: nothing is computed
            return func(*args, **kwargs)
        if any(t is not torch.Tensor and t is not torch.nn.Parameter for t in types):
            return NotImplemented
        space, _, name = func._schema.name.partition("::")
        if space == "profiler":  # names of stretches of time: no tensor is read or made
            return func(*args, **kwargs)
        if space in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            return record(self, f"{space}::{name}", args, lambda given: func(*given, **kwargs))
        if name.rstrip("_") in RANDOM:
            if name.startswith(("native_dropout", "dropout")) and (args[1] == 0 or args[2:3] == (False,)):
                return NotImplemented
            raise Unreadable(
                f"operator {name} ({self.place()}) draws random numbers: leave it out, or put it in eval()"
            )
        if name == "_local_scalar_dense":
            self.require_constant(args[0])
            return func(*args, **kwargs)
        pairs = _of_pairs(name, args, kwargs)
        if pairs and (found := self._pairs(func, name, args, kwargs)) is not NotImplemented:
            return found
        if name in SAME:
            return self._same(func(*args, **kwargs), args[0])
        if (known := PARTS.get(_full_name(func))) is not None:
            try:
                with self:
                    made = known(*args, **kwargs)
            except NotKnown as error:
                raise Unreadable(f"operator {name} ({self.place()}) {error}") from None
            if made is NotImplemented:
                raise Unreadable(f"operator {name} ({self.place()}) draws random numbers: put it in eval()")
            return made if func._schema.returns else None
        if "out" in kwargs or (name.endswith("_") and not name.startswith("__") and name not in WRITES):
            return self._in_place(func, name, args, kwargs)
        if name == "as_strided" and len(args) > 2:
            return self._strided(func(*args, **kwargs), args[0])
        if name in WRITES:
            return self._write(func, name, args, kwargs)
        if (views := views_of(name, args, kwargs)) is not None:
            return self._view(func(*args, **kwargs), args[0], views)
        if name in COPIES:
            return self._copy(func, args, kwargs)
        if name in FACTORIES:
            return self._factory(func(*args, **kwargs), name.startswith(("empty", "new_empty")))
        if name in operators.HANDLERS and func._schema.is_mutable:
            raise Unreadable(f"operator {name} ({self.place()}) writes into tensors that are passed in")
        if (handler := operators.HANDLERS.get(name)) is not None:
            out = func(*args, **kwargs)
            numbers = handler(self, args, kwargs, out)
            if numbers is not None:
                for tensor, number in zip(out if isinstance(out, tuple | list) else (out,), numbers, strict=True):
                    self.bind(tensor, number)
                return out
        return self._apart(func, space, name, args, kwargs)

    def _apart(self, func: Any, space: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By operators that are known."""
        parts: Callable[..., Any] | None = decomposition_table.get(func)
        if parts is None and space == "prims":
            parts = getattr(func, "impl_aten", None)
        if (func, len(self.steps)) in self.under_way:  # PyTorch takes it apart into itself
            parts = None
        self.under_way.add((func, len(self.steps)))
        with self:
            if parts is not None:
                return parts(*args, **kwargs)
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
        tensors = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        plain = not func._schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags
        if plain and all(self.number(t) in self.fixed for t in tensors):  # of constants alone: a constant
            made = func(*args, **kwargs)
            held = {t.untyped_storage()._cdata for t in tensors}
            shared = {t.untyped_storage()._cdata for t in tree_leaves(made) if isinstance(t, torch.Tensor)} & held
            self.frozen |= shared
            if not shared & self.written:
                return self._factory(made)
        raise Unreadable(f"operator {space}.{name} ({self.place()}) is not known here")

    def _pairs(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator of complex numbers by what it does with their parts; NotImplemented for one that only says where
        they lie.
        """
        moved = name in SAME | FACTORIES | {"zero_"} or views_of(name, args, kwargs) is not None
        if name in COPIES | {"copy_"}:  # between complex numbers
            kind = kwargs.get("dtype") or args[1 if name == "copy_" else 0].dtype
            moved = args[0].is_complex() and kind.is_complex
        if moved:
            return NotImplemented
        in_place = func._schema.is_mutable and name.endswith("_")
        parts = PAIRS.get(name.removesuffix("_") if in_place else name)
        if parts is None or "out" in kwargs or (func._schema.is_mutable and not in_place):
            raise Unreadable(f"operator {name} ({self.place()}) of complex numbers is not known here")
        with self:
            made = parts(*args, **kwargs)
        if made is NotImplemented:
            raise Unreadable(f"operator {name} ({self.place()}) of complex numbers says what is not known here")
        if in_place:
            with self:
                args[0].copy_(made)
            return args[0]
        return made

    def _same(self, out: Any, tensor: torch.Tensor) -> Any:
        ref = self.ref(tensor)
        self.memory.view(out, ref, ())
        return out

    def _view(self, out: Any, tensor: torch.Tensor, views: Sequence[tuple[View, ...]]) -> Any:
        ref = self.ref(tensor)
        outs = list(out) if isinstance(out, tuple | list) else [out]
        if tensor.is_complex():
            views = [tuple(of_pairs(v) for v in chain) for chain in views]
        for one, chain in zip(outs, views, strict=True):
            if one.untyped_storage()._cdata != tensor.untyped_storage()._cdata:  # `reshape` that had to copy
                number = self.memory.read(ref)
                for v in chain:
                    number = self._emit(v.operator, (number,), v.words, (Described(v.shape, ref.dtype),))[0]
                self.bind(one, number)
            else:
                self.memory.view(one, ref, chain)
        return out

    def _strided(self, out: Any, tensor: torch.Tensor) -> Any:
        """Any elements of a storage, where they lie in order."""
        self.ref(tensor)
        if beside(self, out) is None:
            raise Unreadable(f"as_strided ({self.place()}) of elements that do not lie in order is not known here")
        return out

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = self.number(args[0])
        out = func(*args, **kwargs)
        self.bind(out, self.cast(number, dtype_of(args[0]), dtype_of(out)))
        return out

    def cast(self, number: int, was: str, dtype: str) -> int:
        """A value in another element type."""
        if was == dtype:
            return number
        shape = self.tensors[number].shape
        return self.step("cast", (number,), {"dtype": dtype, "was": was}, ((shape, dtype),))[0]

    def require_constant(self, tensor: torch.Tensor) -> None:
        """`Unreadable` where the contents of a tensor that depends on inputs are looked at."""
        if self.number(tensor) not in self.fixed:
            raise Unreadable(f"reads a number of a tensor on the host ({self.place()}): what runs depends on data")

    def _factory(self, out: Any, unset: bool = False) -> Any:
        if shapes_only(out, {}):
            return out
        for tensor in out if isinstance(out, tuple | list) else (out,):
            with torch.utils._python_dispatch._disable_current_modes():
                flat = numbers_of(tensor.detach()).reshape(-1)
                number = self.constant(tensor, torch.zeros_like(flat) if unset else flat)
            if number is not None:
                self.bind(tensor, number)
        return out

    def constant(self, tensor: torch.Tensor, flat: torch.Tensor) -> int | None:
        """A step that makes these numbers; None where they are a source of their own."""
        made = ((shape_of(tensor), dtype_of(tensor)),)
        if not len(flat) or bool((flat == flat[0]).all()):
            value = flat[0].item() if len(flat) else 0.0
            value = value if abs(value) > 1 << 53 else float(value)
            words: dict[str, Word] = {"shape": shape_of(tensor), "value": value, "dtype": dtype_of(tensor)}
            return self.step("full", (), words, made)[0]
        by = flat[1] - flat[0] if tensor.dtype != torch.bool else 0
        if tensor.dim() == 1 and tensor.dtype == torch.int64 and bool((flat[1:] - flat[:-1] == by).all()):
            words = {"n": len(flat), "start": float(flat[0]), "step": float(by), "dtype": dtype_of(tensor)}
            return self.step("iota", (), words, made)[0]
        many = sum(s.kind == "constant" for s in self.sources)
        self.source(tensor, f"constant {many}", "constant")
        return None

    def _write(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, shape = args[0], shape_of(args[0])
        self.ref(target)
        if name == "copy_":
            source = args[1]
            number = self.cast(self.number(source), dtype_of(source), dtype_of(target))
            if shape_of(source) != shape:
                number = self.step("expand", (number,), {"shape": shape}, ((shape, dtype_of(target)),))[0]
        elif name == "fill_" and isinstance(args[1], torch.Tensor):
            number = self.cast(self.number(args[1]), dtype_of(args[1]), dtype_of(target))
            number = self.step("expand", (number,), {"shape": shape}, ((shape, target.dtype),))[0]
        else:
            value = float(args[1]) if name == "fill_" else 0.0
            words: dict[str, Word] = {"shape": shape, "value": value, "dtype": dtype_of(target)}
            number = self.step("full", (), words, ((shape, dtype_of(target)),))[0]
        out = func(*args, **kwargs)
        self.write(target, number)
        return out

    def _in_place(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By the operator that makes a new tensor, and a copy."""
        target = kwargs.get("out", args[0] if args else None)
        rest = {k: v for k, v in kwargs.items() if k != "out"}
        made = _making(getattr(torch.ops.aten, name.removesuffix("_"), None), func)
        if made is None or not isinstance(target, torch.Tensor):
            raise Unreadable(f"operator {name} ({self.place()}) writes in place and is not known here")
        with self:
            new = made(*args, **rest)
            target.copy_(new)
        return target


def _of_pairs(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator reads or makes complex numbers."""
    leaves = tree_leaves((args, kwargs))
    kinds = [t if isinstance(t, torch.dtype) else t.dtype for t in leaves if isinstance(t, torch.Tensor | torch.dtype)]
    return name in ("polar", "complex") or any(kind.is_complex for kind in kinds)


def _full_name(func: Any) -> str:
    """Name of an operator, with its overload where it is not the default."""
    overload = func._schema.overload_name
    return f"{func._schema.name}.{overload}" if overload else str(func._schema.name)


def _making(packet: Any, func: Any) -> Any:
    """The operator of the same arguments that makes a new tensor; None if there is none."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name != "out"]
    for overload in packet.overloads() if packet is not None else ():
        found = getattr(packet, overload)
        arguments = [(a.name, str(a.type)) for a in found._schema.arguments]
        if not found._schema.is_mutable and arguments == wanted:
            return found
    return None


def shapes_only(args: object, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator works on tensors without values."""
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
        return True
    flat, _ = torch.utils._pytree.tree_flatten((args, dict(kwargs)))
    return any(isinstance(t, torch.Tensor) and (isinstance(t, FakeTensor) or t.device.type == "meta") for t in flat)
