"""Follows values through views and writes in place: every tensor is a view of the storage that it lies in.

    base    the tensor with which a storage was met
    pair    a complex number is its real and its imaginary part, in a last dimension of two: what lies in memory
    view    how a tensor is made of another one of the same storage: reshape, permute, slice, expand, one after another

A write into a view makes a new value of it, of what it is a view of, and so on down to the base; other views of the
storage are made again when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from ...equality.captured import Unreadable
from ...equality.program import Described, Word

if TYPE_CHECKING:
    import torch

Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class View:
    """One view operator with its words, and the shape that it makes."""

    operator: str
    words: tuple[tuple[str, Word], ...]
    shape: tuple[int, ...]


@dataclass(eq=False)
class Storage:
    """`version` counts writes."""

    version: int = 0


@dataclass(eq=False)
class Ref:
    """A tensor of a storage: `number` is its value as of `version`; `offset`: where its elements begin, if they lie one
    behind another in order.
    """

    shape: tuple[int, ...]
    dtype: str
    storage: Storage
    number: int
    version: int = 0
    parent: Ref | None = None
    views: tuple[View, ...] = ()
    offset: int | None = None

    @property
    def root(self) -> Ref:
        """The base of its storage."""
        return self if self.parent is None else self.parent.root


Emit = Callable[[str, tuple[int, ...], tuple[tuple[str, Word], ...], tuple[Described, ...]], tuple[int, ...]]


@dataclass(eq=False)
class Memory:
    """All tensors that are known, by where they lie; `kept` keeps storages from being used again."""

    emit: Emit
    refs: dict[Key, Ref] = field(default_factory=dict)
    storages: dict[int, Storage] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)

    def find(self, tensor: torch.Tensor) -> Ref | None:
        """What is known of a tensor: itself, or the base of its storage in another shape."""
        key = key_of(tensor)
        if key in self.refs:
            return self.refs[key]
        if key[0] not in self.storages or not tensor.is_contiguous():
            return None
        for other, ref in self.refs.items():
            if other[:2] == key[:2] and prod(ref.shape) == prod(key[2]) and ref.dtype == dtype_of(tensor):
                stride, expected = [], 1
                for n in reversed(other[2]):
                    stride.append(expected)
                    expected *= n
                if tuple(reversed(stride)) == other[3]:
                    shape = key[2]
                    return self.view(tensor, ref, (View("reshape", (("shape", shape),), shape),))
        return None

    def bind(self, tensor: torch.Tensor, number: int) -> None:
        """A new tensor in a storage of its own."""
        key = key_of(tensor)
        storage = Storage()
        self.storages[key[0]] = storage
        self.kept.append(tensor.untyped_storage())
        self.refs[key] = Ref(key[2], dtype_of(tensor), storage, number, offset=_offset(tensor))

    def view(self, tensor: torch.Tensor, parent: Ref, views: tuple[View, ...]) -> Ref:
        """A tensor as a view of another."""
        key = key_of(tensor)
        if key not in self.refs:
            ref = Ref(key[2], dtype_of(tensor), parent.storage, -1, -1, parent, views, _offset(tensor))
            self.refs[key] = ref
        return self.refs[key]

    def within(self, tensor: torch.Tensor, root: Ref) -> Ref | None:
        """A tensor whose elements lie in order as a view of the base of its storage; None if they do not, or there are
        elements that the base does not have.
        """
        first, shape = _offset(tensor), shape_of(tensor)
        count = prod(shape)
        if first is None or root.offset is None or root.dtype != dtype_of(tensor):
            return None
        first -= root.offset
        if first < 0 or first + count > prod(root.shape):
            return None
        views, flat = list[View](), (prod(root.shape),)
        if root.shape != flat:
            views.append(View("reshape", (("shape", flat),), flat))
        if (count,) != flat:
            words = (("dim", 0), ("start", first), ("stop", first + count), ("step", 1))
            views.append(View("slice", words, (count,)))
        if shape != (count,):
            views.append(View("reshape", (("shape", shape),), shape))
        return self.view(tensor, root, tuple(views))

    def widen(self, root: Ref, wide: torch.Tensor, before: int, number: int) -> Ref:
        """A base of more elements: `wide`, whose value is `number`, has `before` of them before the old base's, which
        is a view of it from now on.
        """
        ref = Ref(shape_of(wide), root.dtype, root.storage, number, root.storage.version, offset=_offset(wide))
        self.refs[key_of(wide)] = ref
        count = prod(root.shape)
        words = (("dim", 0), ("start", before), ("stop", before + count), ("step", 1))
        views = [View("slice", words, (count,))]
        if root.shape != (count,):
            views.append(View("reshape", (("shape", root.shape),), root.shape))
        root.parent, root.views = ref, tuple(views)
        root.version = root.storage.version
        return ref

    def free(self, storage: int) -> None:
        """What lies in a storage is gone."""
        for key, ref in self.refs.items():
            if key[0] == storage:
                ref.number, ref.version = -1, -1

    def read(self, ref: Ref) -> int:
        """The number of a tensor's value as of now."""
        if ref.version != ref.storage.version or ref.number < 0:
            if ref.parent is None:
                if ref.number < 0:
                    raise Unreadable("reads memory that was given back (the storage was resized to nothing)")
                return ref.number
            ref.number = self._along(self.read(ref.parent), ref)[-1]
            ref.version = ref.storage.version
        return ref.number

    def write(self, ref: Ref, number: int) -> None:
        """A new value of a tensor, and of all that it is a view of."""
        if ref.parent is None:
            ref.storage.version += 1
        else:
            all_of = all(v.operator in ("reshape", "permute") for v in ref.views)
            numbers = [-1] * len(ref.views) if all_of else self._along(self.read(ref.parent), ref)
            shapes = [ref.parent.shape, *(v.shape for v in ref.views)]
            new = number
            for k in range(len(ref.views) - 1, -1, -1):
                new = self._back(ref.views[k], numbers[k], shapes[k], new, ref.dtype)
            self.write(ref.parent, new)
        ref.number, ref.version = number, ref.storage.version

    def _along(self, number: int, ref: Ref) -> list[int]:
        found = [number]
        for view in ref.views:
            found += self.emit(view.operator, (found[-1],), view.words, (Described(view.shape, ref.dtype),))
        return found

    def _back(self, view: View, old: int, shape: tuple[int, ...], new: int, dtype: str) -> int:
        """What a view was made of, with `new` in its place."""
        words = dict(view.words)
        made = (Described(shape, dtype),)
        match view.operator:
            case "reshape":
                return self.emit("reshape", (new,), (("shape", shape),), made)[0]
            case "permute":
                dims = words["dims"]
                if not isinstance(dims, tuple):
                    raise Unreadable("a permutation of no dimensions")
                back = tuple(dims.index(d) for d in range(len(dims)))
                return self.emit("permute", (new,), (("dims", back),), made)[0]
            case "slice":
                return self.emit("slice_scatter", (old, new), view.words, made)[0]
            case _:
                raise Unreadable(f"writes into a tensor that is {view.operator}ed: one element stands in many places")


def _offset(tensor: torch.Tensor) -> int | None:
    return key_of(tensor)[1] if tensor.is_contiguous() else None


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of a tensor's numbers, complex ones as pairs."""
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def numbers_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's numbers, complex ones as pairs."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def key_of(tensor: torch.Tensor) -> Key:
    """Where a tensor lies, counted in real numbers."""
    storage, many = tensor.untyped_storage(), 2 if tensor.is_complex() else 1
    strides = tuple(many * n for n in tensor.stride())
    place = storage._cdata, many * int(tensor.storage_offset()), shape_of(tensor)
    return (*place, (*strides, 1)) if tensor.is_complex() else (*place, strides)


def dtype_of(tensor: torch.Tensor) -> str:
    """The element type as PyTorch calls it, without its package; of a complex number that of its parts."""
    name = str(tensor.dtype).removeprefix("torch.")
    return {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(name, name)
