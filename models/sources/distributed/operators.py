"""Says which operator of PyTorch is which of `models.equality.program`: views, and what is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from ...equality.captured import Unreadable
from ...equality.program import Word
from .storage import dtype_of
from .views import positive, slice_view
from .writes import aligned_dimension, index_put, indexed_dimensions, scatter

if TYPE_CHECKING:
    from .recorder import Recorder

Args = tuple[Any, ...]
Handler = Callable[["Recorder", Args, Mapping[str, Any], Any], "tuple[int, ...] | None"]
Sure = Callable[["Recorder", Args, Mapping[str, Any], Any], "tuple[int, ...]"]


# ---------------------------------------------------------------------------- what is computed


def _made(out: Any) -> tuple[tuple[tuple[int, ...], Any], ...]:
    outs = out if isinstance(out, tuple | list) else (out,)
    return tuple((tuple(t.shape), t.dtype) for t in outs)


def _one(name: str) -> Sure:
    return lambda r, a, k, out: r.step(name, (r.number(a[0]),), {}, _made(out))


def _two(name: str) -> Sure:
    def handle(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
        a, b = args[0], args[1]
        if out.dtype == torch.bool and name == "add":  # a sum of truth values is one
            return r.step("logical_or", (_operand(r, a), _operand(r, b)), {}, _made(out))
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        first = r.number(a) if isinstance(a, torch.Tensor) else None
        second = r.number(b) if isinstance(b, torch.Tensor) else None
        if alpha != 1:
            if second is not None:
                second = r.step("mul", (second,), {"number": alpha}, ((tuple(b.shape), b.dtype),))[0]
            else:
                b = b * alpha
        if first is not None and second is not None:
            return r.step(name, (first, second), {}, _made(out))
        if first is not None:
            return r.step(name, (first,), {"number": _plain(b)}, _made(out))
        if second is not None:
            return r.step(name, (second,), {"number": _plain(a), "reverse": True}, _made(out))
        raise Unreadable(f"{name} of two numbers ({r.place()})")

    return handle


def _plain(x: Any) -> Word:
    if isinstance(x, bool | int | float):
        return x
    raise Unreadable(f"a number that is {type(x).__name__}")


def _div(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    mode = kwargs.get("rounding_mode")
    found = _two("div")(r, args[:2], {}, out)
    return found if mode is None else r.step(mode, found, {}, _made(out))


def _floor_divide(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    return _div(r, args, {"rounding_mode": "floor"}, out)


def _remainder(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    whole = _floor_divide(r, args, {}, out)[0]
    if isinstance(args[1], torch.Tensor):
        back = r.step("mul", (whole, r.number(args[1])), {}, _made(out))[0]
    else:
        back = r.step("mul", (whole,), {"number": _plain(args[1])}, _made(out))[0]
    return r.step("sub", (r.number(args[0]), back), {}, _made(out))


def _logical(name: str) -> Handler:
    def handle(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...] | None:
        if any(isinstance(a, torch.Tensor) and a.dtype != torch.bool for a in args):
            return None
        return _two(name)(r, args, kwargs, out)

    return handle


def _where(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...] | None:
    if len(args) != 3:
        return None
    return r.step("where", tuple(_operand(r, a) for a in args), {}, _made(out))


def _operand(r: Recorder, a: Any) -> int:
    """A tensor, or a number as one."""
    if isinstance(a, torch.Tensor):
        return r.number(a)
    kind = {bool: torch.bool, int: torch.int64}.get(type(a), torch.float32)
    words: dict[str, Word] = {"shape": (), "value": float(_plain(a)), "dtype": str(kind)[6:]}  # type: ignore[arg-type]
    return r.step("full", (), words, (((), kind),))[0]


def _var(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    """Squares of what differs from the mean, their sum divided by the count less the correction."""
    x, rest = args[0], list(args[1:])
    dims = kwargs.get("dim", rest[0] if rest and not isinstance(rest[0], bool) else None)
    correction = kwargs.get("correction", 1)
    if any(isinstance(a, bool) for a in rest[:2]):
        correction = int(next(a for a in rest if isinstance(a, bool)))
    elif len(rest) > 1 and isinstance(rest[1], int | float):
        correction = rest[1]
    correction = 1 if correction is None else correction
    dims = list(range(x.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
    dims = [positive(d, x.dim()) for d in dims]
    count = 1
    for d in dims:
        count *= x.shape[d]
    wide = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    words: dict[str, Word] = {"dims": tuple(dims), "keep": True}
    mean = r.step("sum", (r.number(x),), words, ((wide, x.dtype),))[0]
    mean = r.step("div", (mean,), {"number": count}, ((wide, x.dtype),))[0]
    apart = r.step("sub", (r.number(x), mean), {}, ((tuple(x.shape), x.dtype),))[0]
    square = r.step("mul", (apart, apart), {}, ((tuple(x.shape), x.dtype),))[0]
    total = r.step("sum", (square,), words, ((wide, x.dtype),))[0]
    total = r.step("div", (total,), {"number": count - correction}, ((wide, x.dtype),))[0]
    if not isinstance(out, tuple | list):
        return (r.reshape(total, tuple(out.shape), x.dtype),)
    return tuple(r.reshape(n, tuple(o.shape), x.dtype) for n, o in zip((total, mean), out, strict=True))


def _matmul(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    return r.step("matmul", (r.number(args[0]), r.number(args[1])), {}, _made(out))


def _reduced(name: str) -> Sure:
    def handle(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
        rank = args[0].dim()
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        if dims is None or (isinstance(dims, tuple | list) and not dims):
            dims = list(range(rank))
        dims = [dims] if isinstance(dims, int) else dims
        keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
        words: dict[str, Word] = {"dims": tuple(positive(d, rank) for d in dims) if rank else (), "keep": keep}
        return r.step(name, (r.number(args[0]),), words, _made(out))

    return handle


def _mean(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    total = _reduced("sum")(r, args, kwargs, out)
    count = args[0].numel() // max(1, out.numel())
    return r.step("div", total, {"number": count}, _made(out))


def _extreme(name: str) -> Handler:
    def handle(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
        if not isinstance(out, tuple | list):
            if len(args) > 1 and isinstance(args[1], torch.Tensor):
                return _two("maximum" if name == "amax" else "minimum")(r, args, {}, out)
            return _reduced(name)(r, args[:1], {}, out)
        x, rank = args[0], args[0].dim()
        d = positive(args[1] if len(args) > 1 else kwargs["dim"], rank)
        wide = (*x.shape[:d], 1, *x.shape[d + 1 :])
        words: dict[str, Word] = {"dim": d, "k": 1, "largest": name == "amax"}
        found = r.step("topk", (r.number(x),), words, ((wide, out[0].dtype), (wide, out[1].dtype)))
        shape = tuple(out[0].shape)
        values = _reduced(name)(r, (x, d, len(shape) == rank > 0), {}, out[0])[0]
        return r.reshape(values, shape, out[0].dtype), r.reshape(found[1], shape, out[1].dtype)

    return handle


def _argmax(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...] | None:
    if len(args) < 2 or args[1] is None:
        return None
    x = args[0]
    d = positive(args[1], x.dim())
    wide = (*x.shape[:d], 1, *x.shape[d + 1 :])
    words: dict[str, Word] = {"dim": d, "k": 1, "largest": True}
    found = r.step("topk", (r.number(x),), words, ((wide, x.dtype), (wide, out.dtype)))
    return (r.reshape(found[1], tuple(out.shape), out.dtype),)


def _topk(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    d = positive(args[2] if len(args) > 2 else kwargs.get("dim", -1), args[0].dim())
    largest = bool(args[3] if len(args) > 3 else kwargs.get("largest", True))
    return r.step("topk", (r.number(args[0]),), {"dim": d, "k": args[1], "largest": largest}, _made(out))


def _sort(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    named = dict(zip(("dim", "descending"), args[1:], strict=False)) | dict(kwargs)
    d = positive(named.get("dim", -1), args[0].dim())
    words: dict[str, Word] = {"dim": d, "descending": bool(named.get("descending", False))}
    return r.step("sort", (r.number(args[0]),), words, _made(out))


def _cumsum(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    number = r.cast(r.number(args[0]), dtype_of(args[0]), dtype_of(out))  # before anything is added up
    return r.step("cumsum", (number,), {"dim": positive(args[1], args[0].dim())}, _made(out))


def _cat(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    d = positive(args[1] if len(args) > 1 else kwargs.get("dim", 0), out.dim())
    parts = [t for t in args[0] if t.dim() == out.dim()]
    return r.step("cat", tuple(r.number(t) for t in parts), {"dim": d}, _made(out))


def _gather(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    d = positive(args[1], args[0].dim())
    return r.step("gather", (r.number(args[0]), r.number(args[2])), {"dim": d}, _made(out))


def _scatter_add(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    d = positive(args[1], args[0].dim())
    reads = (r.number(args[0]), r.number(args[2]), r.number(args[3]))
    return r.step("scatter_add", reads, {"dim": d}, _made(out))


def _index(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    x = args[0]
    dims, by = indexed_dimensions(r, x, args[1])
    if (d := aligned_dimension(r, x, dims, by)) is not None:
        size = (*out.shape[:d], 1, *out.shape[d:])
        index = r.reshape(r.number(by[d]), size, by[d].dtype)
        picked = r.step("gather", (r.number(x), index), {"dim": d, "wrap": True}, ((size, out.dtype),))
        return (r.reshape(picked[0], tuple(out.shape), out.dtype),)
    order = [*dims, *(d for d in range(x.dim()) if d not in dims)]
    number = r.number(x)
    if order != list(range(x.dim())):
        made = ((tuple(x.shape[d] for d in order), x.dtype),)
        number = r.step("permute", (number,), {"dims": tuple(order)}, made)[0]
    shape = torch.broadcast_shapes(*(i.shape for i in by))
    rest = tuple(x.shape[d] for d in order[len(dims) :])
    reads = (number, *(r.number(i) for i in by))
    found = r.step("index", reads, {}, (((*shape, *rest), x.dtype),))[0]
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    if together and dims[0] > 0:  # what is picked stands where the dimensions were
        n, first = len(shape), dims[0]
        back = (*range(n, n + first), *range(n), *range(n + first, n + len(rest)))
        found = r.step("permute", (found,), {"dims": back}, _made(out))[0]
    return (found,)


def _embedding_gradient(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...] | None:
    """Rows of the gradient added where they were looked up; not at the padding."""
    g, ids, _, padding, by_count = args[:5]
    if by_count:
        return None
    number, shape = r.number(g), tuple(g.shape)
    if padding >= 0:
        hit = r.step("eq", (r.number(ids),), {"number": padding}, ((tuple(ids.shape), torch.bool),))[0]
        hit = r.reshape(hit, (*ids.shape, 1), torch.bool)
        number = r.step("where", (hit, _operand(r, 0.0), number), {}, ((shape, g.dtype),))[0]
    words: dict[str, Word] = {"shape": tuple(out.shape), "value": 0.0, "dtype": dtype_of(out)}
    empty = r.step("full", (), words, _made(out))[0]
    return r.step("index_add", (empty, r.number(ids), number), {"wrap": False}, _made(out))


def _slice_scatter(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    x, new = args[0], args[1]
    view = slice_view((x, *args[2:]), kwargs, tuple(x.shape))
    return r.step("slice_scatter", (r.number(x), r.number(new)), dict(view.words), _made(out))


def _select_scatter(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    x, new = args[0], args[1]
    d = positive(args[2], x.dim())
    i = args[3] + x.shape[d] if args[3] < 0 else args[3]
    number = r.reshape(r.number(new), (*x.shape[:d], 1, *x.shape[d + 1 :]), x.dtype)
    words: dict[str, Word] = {"dim": d, "start": i, "stop": i + 1, "step": 1}
    return r.step("slice_scatter", (r.number(x), number), words, _made(out))


def _flip(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    number, shape = r.number(args[0]), tuple(args[0].shape)
    for d in args[1]:
        d = positive(d, len(shape))
        one = (*shape[:d], 1, *shape[d + 1 :])
        parts = [
            r.step("slice", (number,), {"dim": d, "start": i, "stop": i + 1, "step": 1}, ((one, out.dtype),))[0]
            for i in reversed(range(shape[d]))
        ]
        number = r.step("cat", tuple(parts), {"dim": d}, ((shape, out.dtype),))[0]
    return (number,)


def _triangle(name: str) -> Handler:
    def handle(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
        k = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        return r.step(name, (r.number(args[0]),), {"diagonal": k}, _made(out))

    return handle


HANDLERS: Final[Mapping[str, Handler]] = {
    **{
        n: _one(n)
        for n in (
            *("neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "sign", "tanh"),
            *("erf", "sigmoid", "sin", "cos"),
            *("floor", "ceil", "trunc", "log1p", "expm1"),
        )
    },
    "logical_not": lambda r, a, k, o: (
        _one("logical_not")(r, a, k, o)
        if a[0].dtype == torch.bool
        else r.step("eq", (r.number(a[0]),), {"number": 0}, _made(o))
    ),
    "embedding": lambda r, a, k, o: r.step("index", (r.number(a[0]), r.number(a[1])), {"wrap": False}, _made(o)),
    "round": lambda r, a, k, o: None if len(a) > 1 or k.get("decimals") else _one("round")(r, a, k, o),
    "bitwise_not": lambda r, a, k, o: _one("logical_not")(r, a, k, o) if a[0].dtype == torch.bool else None,
    **{n: _two(n) for n in ("add", "sub", "mul", "maximum", "minimum", "pow", "gt", "ge", "lt", "le", "eq", "ne")},
    "rsub": lambda r, a, k, o: _two("sub")(r, (a[1], a[0], *a[2:]), k, o),
    "div": _div,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "logical_and": _logical("logical_and"),
    "logical_or": _logical("logical_or"),
    "bitwise_and": _logical("logical_and"),
    "bitwise_or": _logical("logical_or"),
    "__and__": _logical("logical_and"),
    "__or__": _logical("logical_or"),
    "where": _where,
    "var": _var,
    "var_mean": _var,
    "mm": _matmul,
    "bmm": _matmul,
    "sum": _reduced("sum"),
    "mean": _mean,
    "amax": _reduced("amax"),
    "amin": _reduced("amin"),
    "max": _extreme("amax"),
    "min": _extreme("amin"),
    "argmax": _argmax,
    "topk": _topk,
    "sort": _sort,
    "cumsum": _cumsum,
    "cat": _cat,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "scatter": scatter,
    "index": _index,
    "index_put": index_put,
    "embedding_dense_backward": _embedding_gradient,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "flip": _flip,
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
}
