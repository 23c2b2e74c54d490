"""Writes down what PyTorch's process groups are asked for: collectives and messages of `torch.distributed`, in place
and functional, with the global ranks of their group.

Nothing is sent while a program is written down: what a rank receives is made of what it sends itself (`receive`), with
the shapes and sizes of a job, so that what it calculates of that can be compared with what is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._pytree import tree_leaves

from ...equality.captured import Unreadable
from ...equality.program import Word
from ...equality.schedule import Event
from .waits import Flight

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .recorder import Recorder

OPS: Final = ("SUM", "AVG", "MAX", "MIN", "PRODUCT")
Reduction = tuple[str, float]
"""What is done with the ranks' tensors, and the number that each is multiplied with before."""
_factors = list[float]()


@contextmanager
def noting_factors() -> Iterator[None]:
    """While factors of sums that multiply before they add up are noted: what is passed on hides them."""
    import torch.distributed.distributed_c10d as c10d

    names = ("AllreduceOptions", "ReduceOptions", "ReduceScatterOptions")
    before = {name: getattr(c10d, name) for name in names}

    def noting(cls: Any) -> type:
        def note(self: object, name: str, value: Any) -> None:
            if name == "reduceOp" and value == c10d.ReduceOp.PREMUL_SUM:
                factor = value.__getstate__()[1]
                _factors.append(float(factor.item() if isinstance(factor, torch.Tensor) else factor))
            cls.__setattr__(self, name, value)

        return type(cls.__name__, (cls,), {"__setattr__": note})

    for name, cls in before.items():
        setattr(c10d, name, noting(cls))
    try:
        yield
    finally:
        for name, cls in before.items():
            setattr(c10d, name, cls)
        _factors.clear()


def _op(asked: Any, place: str) -> Reduction:
    """The reduction that is asked for."""
    import torch.distributed as dist

    number = asked.op()
    if number == int(dist.ReduceOp.RedOpType.PREMUL_SUM):
        if not _factors:
            raise Unreadable(f"a sum at {place} does not say what it multiplies with: call it by torch.distributed")
        factor = _factors[-1]
        _factors.clear()
        return "sum", factor
    for name in OPS:
        if number == int(getattr(dist.ReduceOp.RedOpType, name)):
            return name.lower(), 1.0
    raise Unreadable(f"reduction {dist.ReduceOp.RedOpType(number).name} at {place} is not known here")


def _found(value: object) -> ProcessGroup:
    """A group by its name, or as operators take it."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    if isinstance(value, str):
        return c10d._resolve_process_group(value)
    return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)


def _group(value: object) -> tuple[int, ...]:
    import torch.distributed as dist

    return tuple(dist.get_process_group_ranks(_found(value)))


def _which(recorder: Recorder, asked: object, ranks: tuple[int, ...], message: bool) -> int:
    """How many groups of these ranks (of two that send and receive: of both, and others) were made before this one: all
    ranks of them count alike.
    """
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    name, known = str(_found(asked).group_name), recorder.waits.numbers
    key = name, ranks, message
    if key not in known:
        mine = [g for g in c10d._world.pg_group_ranks if isinstance(g, dist.ProcessGroup)]
        same = [g.group_name for g in mine if ({*ranks} <= {*_group(g)} if message else _group(g) == ranks)]
        known[key] = same.index(name) if name in same else 0
    return known[key]


Args = Sequence[Any]


def record(recorder: Recorder, name: str, args: Args, call: Callable[[Args], object]) -> object:
    """One operator of `c10d` or `_c10d_functional`, as `_record` says; what its own group has under way is in order."""
    op = name.rpartition("::")[2]
    if op not in ("send", "recv_"):  # no order holds between messages and collectives
        recorder.waits.calling = next((g for a in args if (g := _group_or_none(a)) is not None), "")
    try:
        return _record(recorder, name, args, lambda: call(_as_taken(op, args)))
    finally:
        recorder.waits.calling = ""


def _as_taken(op: str, args: Args) -> Args:
    """Operands as a group takes them that sends nothing: it scatters no parts that are stacked in a dimension of their
    own, as others do.
    """
    if op != "_reduce_scatter_base_" or args[1].dim() <= args[0].dim():
        return args
    with torch.utils._python_dispatch._disable_current_modes():
        whole = args[1].reshape(-1, *args[0].shape[1:])
    return (args[0], whole, *args[2:])


def _group_or_none(value: object) -> str | None:
    if isinstance(value, torch.Tensor | list | tuple | int | float | bool) or value is None:
        return None
    try:
        return str(_found(value).group_name)
    except (RuntimeError, ValueError, TypeError, LookupError):  # another operand
        return None


def _record(recorder: Recorder, name: str, args: Args, run: Callable[[], object]) -> object:
    """One operator of `c10d` or `_c10d_functional`: writes it down, runs it, and says what its tensors hold then."""
    op = name.rpartition("::")[2]
    if op == "wait_tensor":
        recorder.waits.land_tensor(args[0])
    if op in ("wait_tensor", "_wrap_tensor_autograd"):
        return run()
    place = recorder.place()
    if recorder.waits.inside is not None:
        raise Unreadable(f"collective {op} ({place}) in a callback of a future is not known here: call it after a wait")
    if any(t.is_complex() for t in tree_leaves(list(args)) if isinstance(t, torch.Tensor)):
        raise Unreadable(f"collective {op} ({place}) of complex numbers is not known here: send their parts")
    if name.startswith("_c10d_functional"):
        return _functional(recorder, op.removesuffix("_"), args, run, op.endswith("_"))
    if op == "barrier":
        ranks = _group(args[1])
        recorder.step("barrier", (), {"ranks": ranks}, ())
        recorder.waits.events.append(_event(recorder, op, args, ranks, place))
        return run()
    ranks, found = _written_down(recorder, op, args, place)
    out, first = run(), 0
    own = op in ("allreduce_", "reduce_", "broadcast_")
    sent = [] if op == "recv_" else [t for t in tree_leaves(args[op != "send"]) if isinstance(t, torch.Tensor)]
    for tensor, number in found:
        receive(recorder, tensor, number, (tensor,) if own else sent, 0 if own else first)
        recorder.write(tensor, number)
        first += tensor.numel()
    event, group = _event(recorder, op, args, ranks, place), recorder.waits.calling
    flight = Flight(op.rstrip("_"), group, [t for t, _ in found], [] if own else sent, place, event)
    work = recorder.waits.work(flight, args[0])
    return (*out[:-1], work) if isinstance(out, tuple) else work


def _written_down(
    recorder: Recorder, op: str, args: Args, place: str
) -> tuple[tuple[int, ...], list[tuple[torch.Tensor, int]]]:
    """The ranks of an operator of `c10d`, and the tensors that it makes with their numbers."""
    match op:
        case "allreduce_":
            ranks, (how, factor) = _group(args[1]), _op(args[2], place)
            found = [(t, _step(recorder, "all_reduce", t, ranks, factor, op=how)) for t in args[0]]
        case "reduce_":
            ranks, (how, factor) = _group(args[1]), _op(args[2], place)
            target = ranks[args[3]]
            if factor != 1:
                raise Unreadable(f"a sum at {place} that multiplies first, for one rank alone, is not known here")
            found = [(t, _step(recorder, "reduce", t, ranks, op=how, target=target)) for t in args[0]]
        case "broadcast_":
            ranks = _group(args[1])
            found = [(t, _step(recorder, "broadcast", t, ranks, source=ranks[args[2]])) for t in args[0]]
        case "_allgather_base_":
            ranks = _group(args[2])
            found = [(args[0], _gathered(recorder, args[1], ranks, tuple(args[0].shape)))]
        case "allgather_":
            ranks = _group(args[2])
            found = _listed(recorder, args[0][0], args[1][0], ranks)
        case "_reduce_scatter_base_":
            ranks, asked = _group(args[2]), _op(args[3], place)
            found = [(args[0], _scattered(recorder, recorder.number(args[1]), args[1], args[0], ranks, asked))]
        case "reduce_scatter_":
            ranks, asked = _group(args[2]), _op(args[3], place)
            whole = recorder.stack(args[1][0])
            found = [(args[0][0], _scattered(recorder, whole, args[1][0][0], args[0][0], ranks, asked, len(ranks)))]
        case "alltoall_base_":
            ranks = _group(args[2])
            found = [(args[0], _exchanged(recorder, args[1], ranks, args[4], args[3], tuple(args[0].shape)))]
        case "alltoall_":
            ranks = _group(args[2])
            found = _exchanged_lists(recorder, args[0], args[1], ranks)
        case "send":
            ranks, found = _group(args[1]), []
            for t in args[0]:
                words: Mapping[str, Word] = {"to": ranks[args[2]], "tag": args[3]}
                recorder.step("send", (recorder.number(t),), words, ())
        case "recv_":
            ranks = _group(args[1])
            if args[2] < 0:
                raise Unreadable(f"receives from anybody, {place}")
            found = [
                (t, recorder.step("recv", (), {"of": ranks[args[2]], "tag": args[3]}, ((tuple(t.shape), t.dtype),))[0])
                for t in args[0]
            ]
        case _:
            raise Unreadable(f"collective {op} ({place}) is not known here")
    return ranks, found


def _event(recorder: Recorder, op: str, args: Args, ranks: tuple[int, ...], place: str) -> Event:
    import torch.distributed as dist

    call = len(recorder.waits.kept)
    match op:
        case "send" | "recv_":
            way = (dist.get_rank(), ranks[args[2]]) if op == "send" else (ranks[args[2]], dist.get_rank())
            return Event(call, op.rstrip("_"), (*way, args[3]), place, which=_which(recorder, args[1], way, True))
        case _:
            return Event(
                call, op.rstrip("_"), ranks, place, which=_which(recorder, recorder.waits.calling, ranks, False)
            )


def receive(recorder: Recorder, tensor: torch.Tensor, number: int, sent: Sequence[torch.Tensor], first: int) -> None:
    """Fill a tensor that is received with what this rank sends, over and over from place `first` on, each time a little
    larger (so that no two parts are alike); drawn numbers where it sends nothing.
    """
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        mine = torch.cat([t.detach().reshape(-1) for t in sent]) if sent else tensor.new_zeros(0)
        at = torch.arange(first, first + tensor.numel())
        if mine.numel():
            value = mine[at % mine.numel()]
            value = value * (1 + (at // mine.numel()) / 64) if value.is_floating_point() else value
        else:
            drawn = torch.randn(tensor.numel(), generator=torch.Generator().manual_seed(number))
            value = drawn if tensor.is_floating_point() else torch.zeros_like(drawn)
        tensor.copy_(value.reshape(tensor.shape))
        recorder.received[number] = tensor.clone()


def _step(
    recorder: Recorder, name: str, t: torch.Tensor, ranks: tuple[int, ...], factor: float = 1.0, **words: Word
) -> int:
    made = ((tuple(t.shape), t.dtype),)
    number = _times(recorder, recorder.number(t), factor)
    return recorder.step(name, (number,), {**words, "ranks": ranks}, made)[0]


def _times(recorder: Recorder, number: int, factor: float) -> int:
    """A value times the factor of a sum that multiplies first."""
    if factor == 1:
        return number
    was = recorder.tensors[number]
    return recorder.step("mul", (number,), {"number": factor}, ((was.shape, was.dtype),))[0]


def _wide(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) or (1,)


def _gathered(recorder: Recorder, t: torch.Tensor, ranks: tuple[int, ...], shape: tuple[int, ...]) -> int:
    one = _wide(t.shape)
    mine = recorder.reshape(recorder.number(t), one, t.dtype)
    made = (len(ranks) * one[0], *one[1:])
    number = recorder.step("all_gather", (mine,), {"ranks": ranks}, ((made, t.dtype),))[0]
    return recorder.reshape(number, shape, t.dtype)


def _listed(
    recorder: Recorder, outs: Sequence[torch.Tensor], t: torch.Tensor, ranks: tuple[int, ...]
) -> list[tuple[torch.Tensor, int]]:
    mine = recorder.reshape(recorder.number(t), (1, *t.shape), t.dtype)
    all_of = recorder.step("all_gather", (mine,), {"ranks": ranks}, (((len(ranks), *t.shape), t.dtype),))[0]
    found = []
    for i, out in enumerate(outs):
        words: Mapping[str, Word] = {"dim": 0, "start": i, "stop": i + 1, "step": 1}
        one = recorder.step("slice", (all_of,), words, (((1, *t.shape), t.dtype),))[0]
        found.append((out, recorder.reshape(one, tuple(out.shape), t.dtype)))
    return found


def _scattered(
    recorder: Recorder,
    whole: int,
    t: torch.Tensor,
    out: torch.Tensor,
    ranks: tuple[int, ...],
    how: Reduction,
    stack: int = 0,
) -> int:
    one = (1, *t.shape) if stack else _wide(out.shape)
    shape = (len(ranks) * one[0], *one[1:])
    number = _times(recorder, recorder.reshape(whole, shape, t.dtype), how[1])
    made = recorder.step("reduce_scatter", (number,), {"op": how[0], "ranks": ranks}, ((one, t.dtype),))[0]
    return recorder.reshape(made, tuple(out.shape), t.dtype)


def _exchanged(
    recorder: Recorder,
    t: torch.Tensor,
    ranks: tuple[int, ...],
    send: Sequence[int],
    receive: Sequence[int],
    shape: tuple[int, ...],
) -> int:
    even = len(ranks)
    sent = tuple(send) or (t.shape[0] // even,) * even
    received = tuple(receive) or (shape[0] // even,) * even
    words: Mapping[str, Word] = {"ranks": ranks, "send": sent, "receive": received}
    return recorder.step("all_to_all", (recorder.number(t),), words, ((shape, t.dtype),))[0]


def _exchanged_lists(
    recorder: Recorder, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor], ranks: tuple[int, ...]
) -> list[tuple[torch.Tensor, int]]:
    dtype = ins[0].dtype
    parts = [recorder.reshape(recorder.number(t), (t.numel(),), dtype) for t in ins]
    total = sum(t.numel() for t in ins)
    flat = recorder.step("cat", tuple(parts), {"dim": 0}, (((total,), dtype),))[0]
    words: Mapping[str, Word] = {
        "ranks": ranks,
        "send": tuple(t.numel() for t in ins),
        "receive": tuple(t.numel() for t in outs),
    }
    made = recorder.step("all_to_all", (flat,), words, (((sum(t.numel() for t in outs),), dtype),))[0]
    found, first = [], 0
    for out in outs:
        cut: Mapping[str, Word] = {"dim": 0, "start": first, "stop": first + out.numel(), "step": 1}
        one = recorder.step("slice", (made,), cut, (((out.numel(),), dtype),))[0]
        found.append((out, recorder.reshape(one, tuple(out.shape), dtype)))
        first += out.numel()
    return found


def _functional(recorder: Recorder, op: str, args: Args, run: Callable[[], object], in_place: bool) -> object:
    t = args[0]
    match op:
        case "all_reduce":
            if args[1].upper() not in OPS:
                raise Unreadable(f"reduction {args[1]} ({recorder.place()}) is not known here")
            number = _step(recorder, "all_reduce", t, _group(args[2]), op=args[1].lower())
        case "all_gather_into_tensor":
            ranks, one = _group(args[2]), _wide(t.shape)
            number = _gathered(recorder, t, ranks, (len(ranks) * one[0], *one[1:]))
        case "reduce_scatter_tensor":
            ranks = _group(args[3])
            made = ((t.shape[0] // len(ranks), *t.shape[1:]), t.dtype)
            words: Mapping[str, Word] = {"op": args[1].lower(), "ranks": ranks}
            number = recorder.step("reduce_scatter", (recorder.number(t),), words, (made,))[0]
        case "all_to_all_single":
            ranks = _group(args[3])
            shape = (sum(args[1]), *t.shape[1:])
            number = _exchanged(recorder, t, ranks, args[2], args[1], shape)
        case "broadcast":
            ranks = _group(args[2])
            number = _step(recorder, "broadcast", t, ranks, source=ranks[args[1]])
        case _:
            raise Unreadable(f"collective {op} ({recorder.place()}) is not known here")
    out = run()
    tensor = t if in_place else out
    if not isinstance(tensor, torch.Tensor):
        raise Unreadable(f"collective {op} ({recorder.place()}) makes no tensor")
    receive(recorder, tensor, number, (tensor,) if op in ("all_reduce", "broadcast") else (t,), 0)
    if in_place:
        recorder.write(t, number)
    else:
        recorder.bind(tensor, number)
    place, group = recorder.place(), recorder.waits.calling
    recorder.waits.events.append(_event(recorder, op, args, _group(group), place))
    recorder.waits.begin(Flight(op, group, [tensor], [] if in_place else [t], place))
    return out
