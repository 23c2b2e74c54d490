"""Says what tensors are that lie in one memory which no view operator of the program made: a flat buffer and the
parameters in it, as data parallel optimizers pack them.

    held      what a program holds: of tensors that share memory the parameters are given, everything else there is a
              view of them, one behind another
    beside    a tensor that appears later in memory that is known
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from .storage import Ref, Storage, dtype_of, key_of, shape_of

if TYPE_CHECKING:
    from .recorder import Recorder


class Stretch(NamedTuple):
    """A tensor whose elements lie one behind another, and where in its memory."""

    name: str
    tensor: torch.Tensor
    first: int
    last: int

    def meets(self, other: Stretch) -> bool:
        """Whether both have an element."""
        return self.first < other.last and other.first < self.last


def give(recorder: Recorder, held: Mapping[str, torch.Tensor]) -> list[str]:
    """Writes down what a program holds as its sources, each element once; the names of those that are given."""
    rows, packed = list[str](), dict[int, list[Stretch]]()
    for name, tensor in held.items():
        if tensor.is_contiguous() and tensor.numel() and not tensor.is_complex():
            first = tensor.storage_offset()
            stretch = Stretch(name, tensor, first, first + tensor.numel())
            packed.setdefault(tensor.untyped_storage()._cdata, []).append(stretch)
    given = {name for group in packed.values() for name in _given(group)}
    inside = {s.name for group in packed.values() for s in group} - given
    for name, tensor in held.items():
        if name not in inside and recorder.memory.find(tensor) is None:
            recorder.source(tensor, name, "parameter")
            rows.append(name)
    for group in packed.values():
        chosen = sorted((s for s in group if s.name in given), key=lambda s: s.first)
        if len(chosen) > 1:
            _pack(recorder, chosen)
    return rows


def _given(group: Sequence[Stretch]) -> list[str]:
    """The tensors of one memory that are given: parameters; of others the widest, unless those inside are all of it but
    for one number.
    """
    if len({dtype_of(s.tensor) for s in group}) > 1:
        return [s.name for s in group]
    chosen, rest = list[Stretch](), list[Stretch]()
    for s in group:
        parameter = isinstance(s.tensor, torch.nn.Parameter) or (s.tensor.is_leaf and s.tensor.requires_grad)
        (chosen if parameter and not any(s.meets(c) for c in chosen) else rest).append(s)
    for s in sorted(rest, key=lambda s: s.first - s.last):
        if not any(s.meets(c) for c in chosen) and not _filled(s, rest):
            chosen.append(s)
    return [s.name for s in chosen]


def _filled(wide: Stretch, rest: Sequence[Stretch]) -> bool:
    """Whether narrower tensors are all of a wide one, but for one number."""
    inside = sorted((s for s in rest if wide.first <= s.first and s.last <= wide.last), key=lambda s: s.first)
    inside = [s for s in inside if s.last - s.first < wide.last - wide.first]
    if not inside or any(a.meets(b) for a, b in pairwise(inside)):
        return False
    kept = torch.ones(wide.last - wide.first, dtype=torch.bool)
    for s in inside:
        kept[s.first - wide.first : s.last - wide.first] = False
    left = wide.tensor.detach().reshape(-1)[kept]
    return bool((left == left[:1]).all())


def _pack(recorder: Recorder, chosen: Sequence[Stretch]) -> None:
    """Sources in one memory as views of all of it: they one behind another, with constants between them."""
    one = chosen[0].tensor
    numbers = [recorder.memory.read(recorder.memory.refs[key_of(s.tensor)]) for s in chosen]
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        wide = _all_of(one)
        ends = [(0, 0), *((s.first, s.last) for s in chosen), (wide.numel(), wide.numel())]
        gaps = [wide[a:b].clone() for (_, a), (b, _) in pairwise(ends)]
    parts = list[int]()
    for k, gap in enumerate(gaps):
        if gap.numel():
            number = recorder.constant(gap, gap)
            parts.append(recorder.number(gap) if number is None else number)
        if k < len(numbers):
            parts.append(recorder.reshape(numbers[k], (chosen[k].tensor.numel(),), one.dtype))
    made = recorder.step("cat", tuple(parts), {"dim": 0}, ((tuple(wide.shape), one.dtype),))[0]
    memory, key = recorder.memory, key_of(wide)
    root = Ref(shape_of(wide), dtype_of(one), Storage(), made, offset=0)
    memory.storages[key[0]] = root.storage
    for s in chosen:
        del memory.refs[key_of(s.tensor)]
    memory.refs[key] = root
    for s, number in zip(chosen, numbers, strict=True):
        ref = memory.within(s.tensor, root)
        if ref is not None:
            ref.number, ref.version = number, root.version


def _all_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory in which a tensor lies."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def beside(recorder: Recorder, tensor: torch.Tensor) -> Ref | None:
    """A tensor whose storage is known and which no view operator made: as a view of the base, or of the whole storage,
    where what lies beside the base is a constant; None if it is neither.
    """
    storage = tensor.untyped_storage()
    roots = {id(ref.root): ref.root for key, ref in recorder.memory.refs.items() if key[0] == storage._cdata}
    if len(roots) != 1:
        return None
    (root,) = roots.values()
    found = recorder.memory.within(tensor, root)
    if found is not None or root.offset is None or root.dtype != dtype_of(tensor):
        return found
    many = prod(root.shape)
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        wide = _all_of(tensor)
        first, last = root.offset, root.offset + many
        around = [wide[:first].clone(), wide[last:].clone()]
    parts = [recorder.reshape(recorder.memory.read(root), (many,), tensor.dtype)]
    for k, piece in enumerate(around):
        if piece.numel():
            number = recorder.constant(piece, piece)
            parts.insert(k * len(parts), recorder.number(piece) if number is None else number)
    number = recorder.step("cat", tuple(parts), {"dim": 0}, ((tuple(wide.shape), tensor.dtype),))[0]
    return recorder.memory.within(tensor, recorder.memory.widen(root, wide, first, number))
