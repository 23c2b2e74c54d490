"""Runs PyTorch's functions on DTensors so that their values are those of one process; it is copied into
exported files.

DTensor has a rule for many operators and none for others, some rules hold for even blocks only, and some give wrong
values without a word (a convolution whose batch does not divide).  So a function of a planned module runs in one of
four ways:

    natively   functions whose rules are right for every layout, or for even blocks; if DTensor refuses, whole
    by parts   products over batches and convolutions on what every device holds (`dtensor_contractions`); losses
               (`dtensor_losses`)
    by batch   every rank runs the function on its part of the batch (of the heads, for attention; of the channels, for
               pools): f acts on every element alone, f(x)[b] = f(x[b]); weights are whole, and their gradients are sums
               over the parts
    whole      every rank runs the function on whole tensors, as one process would

`Functions.whole` counts those that ran whole, by name, and `Functions.whole_bytes` the bytes of their whole operands:
there a job moves what the plan does not.  In which types functions compute is said by the plan's program
(`dtensor_program`).  An operation in place
is done on a copy, which takes the place of the tensor from then on: DTensor refuses to change layouts in place.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from .dtensor_contractions import contract, convolution, einsum_letters, matmul_letters
from .dtensor_losses import ELEMENT_LOSSES, cross_entropy, element_loss
from .dtensor_program import Program

ELEMENTWISE = """abs add addcdiv addcmul bfloat16 celu clamp clamp_max clamp_min clone contiguous cos detach div double
elu eq erf exp exp2 expm1 float floor ge gelu gt half hardsigmoid hardswish hardtanh le leaky_relu log log1p logical_and
logical_not logical_or logsigmoid lt masked_fill maximum minimum mish mul multiply ne neg negative pow reciprocal relu
relu6 rsqrt rsub selu sigmoid sign silu sin softplus sqrt square sub subtract tanh to true_divide type_as where"""

ARITHMETIC = "add and eq ge gt le lt matmul mul ne neg or pow radd rmatmul rmul rpow rsub rtruediv sub truediv"

CONTRACTING = "linear matmul mm bmm addmm sum softmax log_softmax layer_norm"

ASKING = """dim size numel stride is_floating_point is_complex get_device element_size ndimension requires_grad_ __len__
__repr__ __hash__ register_hook retain_grad is_contiguous data_ptr"""

ANY_BLOCKS = frozenset([f"__{name}__" for name in ARITHMETIC.split()] + f"{ELEMENTWISE} {CONTRACTING} {ASKING}".split())
"""Functions that DTensor runs rightly on blocks of any sizes."""

SHAPING = """amax amin baddbmm cat chunk dropout einsum embedding expand expand_as flatten logsumexp mean movedim narrow
norm permute prod repeat reshape rms_norm select split split_with_sizes squeeze stack std swapaxes swapdims t transpose
tril triu unbind unflatten unsqueeze var view view_as"""

EVEN_BLOCKS = frozenset(SHAPING.split())
"""Functions that DTensor runs rightly on equal blocks."""

FLATTENING = ("view", "reshape", "flatten")

CONVOLUTIONS = {f"conv{transposed}{n}d": n for transposed in ("", "_transpose") for n in (1, 2, 3)}
POOLS = [f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp") for n in (1, 2, 3)]
BY_BATCH = frozenset(
    [*CONVOLUTIONS, *POOLS, *(f"max_pool{n}d_with_indices" for n in (1, 2, 3)), "group_norm", "interpolate"]
    + ["embedding_bag", "scaled_dot_product_attention"]
)
"""Functions that act on every element of the first dimension of the first of their tensors alone."""

ATTENTION = "scaled_dot_product_attention"


UNCAST = frozenset([*ASKING.split(), "to", "type", "float", "half", "bfloat16", "double", "type_as", "detach", "clone"])
"""Functions that ask, or say the type themselves."""

PLACE = "shardproof"
"""Under this name a gradient's node keeps the place of the resharding that it undoes."""


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """See the module docstring.  `whole`: function -> how often it ran whole.  `here`: what is being done, for those
    who count what is sent.
    """

    def __init__(self, mesh: DeviceMesh, program: Program | None = None) -> None:
        super().__init__()
        self.mesh, self.program = mesh, program
        self.whole: Counter[str] = Counter()
        self.whole_bytes: Counter[str] = Counter()
        self.here = ""
        self.now = WeakIdKeyDictionary(ref_type=weakref.ref)
        self.stale = WeakIdKeyDictionary(ref_type=weakref.ref)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = self.current((args, dict(kwargs or {})))
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        if not any(isinstance(x, DTensor) for x in tensors):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        self.here = f"function {name}"
        try:
            return self._function(func, name, args, kwargs)
        finally:
            self.here = ""

    def _function(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.program is not None and name not in UNCAST:
            args, kwargs = self.program.operands(name, args, kwargs)
        args, kwargs = tree_map(self._with_gradient, (args, kwargs))
        target = _changed(name, args, kwargs)
        if target is not None:
            return self._in_place(func, name, target, args, kwargs)
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
            out = self._run(func, name, args, kwargs)
            self._replace(args[0], out)
            return out
        return self._run(func, name, args, kwargs)

    def current(self, value: Any) -> Any:
        """What now stands for tensors that were changed in place."""

        def newest(x: Any) -> Any:
            while isinstance(x, DTensor) and x in self.now:
                x = self.now[x]
            if isinstance(x, DTensor) and (x in self.stale or (x._base is not None and x._base in self.stale)):
                raise RuntimeError(
                    f"{self.stale[x if x in self.stale else x._base]} changed a view in place, and another view of the "
                    f"same tensor is read afterwards; write it out of place"
                )
            return x

        return tree_map(newest, value) if self.now else value

    def _with_gradient(self, x: Any) -> Any:
        """A plain tensor that a gradient goes to becomes a DTensor, so that its gradient is summed where it must be."""
        plain = isinstance(x, torch.Tensor) and not isinstance(x, DTensor) and x.requires_grad
        return self.spread(x) if plain else x

    def _spread_all(self, x: Any) -> Any:
        """Plain tensors become DTensors before a function keeps them for its gradient."""
        return self.spread(x) if isinstance(x, torch.Tensor) and not isinstance(x, DTensor) else x

    def spread(self, x: torch.Tensor) -> DTensor:
        """A tensor that is equal on all ranks."""
        return DTensor.from_local(x, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)

    def _run(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.program is None or name not in (ATTENTION, "multi_head_attention_forward"):
            return self._placed(func, name, args, kwargs)
        with self.program.attention():
            return self._placed(func, name, args, kwargs)

    def _placed(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In one of the four ways."""
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, DTensor)]
        if name == "batch_norm" and isinstance(args[0], DTensor):
            return _batch_norm(*args, **kwargs)
        found = self._contracted(func, name, args, kwargs)
        found = self._loss(func, name, args, kwargs) if found is None else found
        if found is not None:
            return found
        if name in BY_BATCH:
            parts = self._parts(name, args, kwargs)
            return self._run_whole(func, name, args, kwargs) if parts is None else self._by(func, args, kwargs, parts)
        if name == "view" and not any(isinstance(x, torch.dtype) for x in args):
            func = torch.Tensor.reshape  # parts of a tensor may lie in memory where the whole does not
        plain_index = name == "__getitem__" and not any(
            isinstance(x, (torch.Tensor, list, bool)) for x in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        even = all(_even(x) for x in tensors)
        if name in ANY_BLOCKS or (even and (plain_index or name in EVEN_BLOCKS)):
            try:
                return self._natively(func, tree_map(self._spread_all, args), tree_map(self._spread_all, kwargs))
            except (RuntimeError, NotImplementedError, AssertionError, ValueError, IndexError, TypeError):
                pass  # DTensor has no rule for it, or not for these layouts; a mistake of the model comes out below
        return self._run_whole(func, name, args, kwargs)

    def _contracted(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a contraction by parts, or None."""
        if name in CONVOLUTIONS and all(isinstance(x, torch.Tensor) for x in args[:2]) and len(args) > 1:
            ready = tree_map(self._spread_all, args)
            return convolution(func, CONVOLUTIONS[name], "transpose" in name, ready, kwargs, self.mesh)
        operands = args[1:] if name == "einsum" else args
        if name not in ("einsum", "matmul", "__matmul__") or not all(isinstance(x, torch.Tensor) for x in operands):
            return None
        letters = einsum_letters(args[0], operands) if name == "einsum" else matmul_letters(*operands)
        if letters is None:
            return None
        run = (lambda *x: func(args[0], *x)) if name == "einsum" else func
        return contract(run, [self._spread_all(x) for x in operands], *letters, self.mesh)

    def _loss(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a loss where its operands lie, or None."""
        if name in ELEMENT_LOSSES:
            return element_loss(func, args, kwargs, self.mesh)
        if name not in ("cross_entropy", "nll_loss"):
            return None
        wide = self.program is not None and self.program.half is not None
        found = cross_entropy(func, name, args, kwargs, self.mesh, wide)
        if found is None:
            return None
        value, count = found
        if count is not None and self.program is not None:
            self.program.counts.append(count)
        return value

    def _natively(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By DTensor's rule.  A view that would leave a dimension cut with a stride gets its input cut elsewhere along
        that mesh dimension first, or gathered: the gradient of such a view has no rule.
        """
        while True:
            out = func(*args, **kwargs)
            strided = {
                m
                for y in tree_flatten(out)[0]
                if isinstance(y, DTensor)
                for m, p in enumerate(y.placements)
                if type(p).__name__ == "_StridedShard"
            }
            if not strided:
                if getattr(func, "__name__", "") in FLATTENING and isinstance(out, DTensor) and out.requires_grad:
                    out.register_hook(_contiguous)
                return out
            last = max(strided)

            def gather_argument(x: Any, m: int = last) -> Any:
                if not isinstance(x, DTensor):
                    return x
                elsewhere = _elsewhere(x, m) if getattr(func, "__name__", "") in FLATTENING else Replicate()
                kept = [elsewhere if i == m else p for i, p in enumerate(x.placements)]
                return x.redistribute(self.mesh, kept)

            args, kwargs = tree_map(gather_argument, (args, kwargs))

    def _run_whole(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, (args, kwargs))
        with contextlib.nullcontext() if self.program is None else self.program.inside(name, self.mesh.device_type):
            out = func(*args, **kwargs)
        read = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        if any(x.numel() > 1 for x in read):
            self.whole[name] += 1
            self.whole_bytes[name] += sum(x.nbytes for x in read)
        return tree_map(lambda y: self.spread(y) if isinstance(y, torch.Tensor) and y.is_floating_point() else y, out)

    def _parts(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Placement] | None:
        """How the batch is split, per mesh dimension; None where every rank has all of it."""
        x = args[0] if args else kwargs.get("input", kwargs.get("query"))
        if not isinstance(x, DTensor) or x.ndim < 2 or kwargs.get("offsets") is not None:
            return None
        if name in CONVOLUTIONS and x.ndim != CONVOLUTIONS[name] + 2:
            return None
        if name == "embedding_bag" and (x.ndim != 2 or (len(args) > 2 and args[2] is not None)):
            return None
        rows = [x, *(y for y in args[1:3] if isinstance(y, torch.Tensor))] if name == ATTENTION else [x]
        pair = x.ndim == 4 if name == ATTENTION else ("pool" in name or name == "interpolate") and x.ndim > 3
        dims = (0, 1) if pair else (0,)
        sizes = {d: 1 for d in dims}
        out: list[Placement] = []
        for placement, size in zip(x.placements, self.mesh.shape, strict=True):
            kept = None
            if isinstance(placement, Shard) and placement.dim in dims:
                total = sizes[placement.dim] * size
                if all(row.shape[placement.dim] % total == 0 for row in rows):
                    sizes[placement.dim], kept = total, placement
            out.append(kept or Replicate())
        return out if any(isinstance(p, Shard) for p in out) else None

    def _by(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], parts: list[Placement]
    ) -> Any:
        """`func` on every rank's part of the batch."""
        attention = func.__name__ == ATTENTION
        sums = [Partial() if isinstance(p, Shard) else Replicate() for p in parts]
        first: Any = args[0] if args else kwargs.get("input", kwargs.get("query"))

        def local(x: Any, batch: bool) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if not batch:
                whole = [Replicate()] * self.mesh.ndim
                return x.redistribute(self.mesh, whole).to_local(grad_placements=sums) if isinstance(x, DTensor) else x
            own: list[Placement] = []
            for p in parts:  # a mask may have one row for all
                cut = isinstance(p, Shard) and x.ndim == first.ndim and x.shape[p.dim] > 1
                own.append(p if cut else Replicate())
            grads = [p if isinstance(p, Shard) else s for p, s in zip(own, sums, strict=True)]
            x = x if isinstance(x, DTensor) else self.spread(x)
            return x.redistribute(self.mesh, own).to_local(grad_placements=grads)

        rows = {"input", "query", "key", "value", "attn_mask", "per_sample_weights"}
        out = func(
            *(local(x, i == 0 or (attention and i < 4)) for i, x in enumerate(args)),
            **{k: local(x, k in rows) for k, x in kwargs.items()},
        )
        return tree_map(
            lambda y: DTensor.from_local(y, self.mesh, parts, run_check=False) if isinstance(y, torch.Tensor) else y,
            out,
        )

    def _in_place(
        self, func: Callable[..., Any], name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        def whole(x: Any) -> Any:
            return x.full_tensor() if isinstance(x, DTensor) else x

        if not isinstance(target, DTensor):  # a plain tensor, the same on all ranks
            args, kwargs = tree_map(whole, (args, kwargs))
            return func(*args, **kwargs)
        if target.is_leaf and not (torch.is_grad_enabled() and target.requires_grad):
            try:
                return func(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                pass
        rest = args[1:]
        out = target.clone()
        try:
            func(out, *rest, **kwargs)
        except (RuntimeError, NotImplementedError, AssertionError, ValueError, IndexError):
            own = target.full_tensor().clone()
            rest, kwargs = tree_map(whole, (rest, kwargs))
            func(own, *rest, **kwargs)
            self.whole[name] += 1
            out = self.spread(own)
        self._replace(target, out)
        return None if name == "__setitem__" else out

    def _replace(self, old: DTensor, new: DTensor) -> None:
        if old._base is not None:
            self.stale[old._base] = "an operation"
        self.now[old] = new


def _changed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor that a function changes in place."""
    if kwargs.get("out") is not None:
        raise NotImplementedError(f"{name} with out= on planned tensors; take its result instead")
    in_place = name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    if in_place or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_"):
        return args[0]
    return None


def _contiguous(grad: Any) -> Any:
    """The gradient of a view, its part in one run of memory: the view back needs that."""
    if not isinstance(grad, DTensor) or (grad.to_local().is_contiguous() and grad.is_contiguous()):
        return grad
    stride = torch.empty(grad.shape, device="meta").stride()
    own = grad.to_local().contiguous()
    return DTensor.from_local(own, grad.device_mesh, grad.placements, run_check=False, shape=grad.shape, stride=stride)


def _elsewhere(x: DTensor, m: int) -> Placement:
    """Where a mesh dimension may cut a tensor that is flattened: its first dimension, or its last, if that is cut by
    nothing else and divides; else nowhere.
    """
    held = {p.dim for i, p in enumerate(x.placements) if isinstance(p, Shard) and i != m}
    size = x.device_mesh.shape[m]
    own = x.placements[m]
    for dim in (0, x.ndim - 1):
        if dim not in held and isinstance(own, Shard) and dim != own.dim and x.shape[dim] % size == 0:
            return Shard(dim)
    return Replicate()


def _even(x: DTensor) -> bool:
    """Whether the blocks are equal."""
    parts = [1] * x.ndim
    for placement, size in zip(x.placements, x.device_mesh.shape, strict=True):
        if isinstance(placement, Shard):
            parts[placement.dim] *= size
    return all(n % p == 0 for n, p in zip(x.shape, parts, strict=True))


def _batch_norm(
    x: DTensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Batch normalisation over the whole batch, wherever its parts are."""

    def reduce_partial(y: DTensor) -> DTensor:
        return y.redistribute(y.device_mesh, [Replicate() if p.is_partial() else p for p in y.placements])

    def row(y: Any) -> Any:
        return y.reshape(1, -1, *[1] * (x.ndim - 2))

    x = reduce_partial(x)
    n = x.numel() // x.shape[1]
    if training:
        others = [0, *range(2, x.ndim)]
        mean = reduce_partial(x.sum(others) / n)
        centred = x - row(mean)
        var = reduce_partial(centred.square().sum(others) / n)
        if running_mean is not None:
            with torch.no_grad():
                for kept, new in ((running_mean, mean), (running_var, var * (n / max(n - 1, 1)))):
                    own = new.detach()
                    kept.lerp_(own if isinstance(kept, DTensor) else own.full_tensor(), momentum)
    else:
        var = _same(running_var, x)
        centred = x - row(_same(running_mean, x))
    y = centred * row(torch.rsqrt(var + eps))
    y = y if weight is None else y * row(weight)
    return y if bias is None else y + row(bias)


def _same(kept: Any, x: DTensor) -> DTensor:
    """A buffer, which is equal on all ranks, beside `x`."""
    if isinstance(kept, DTensor):
        return kept
    return DTensor.from_local(kept, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)


def refresh_weights(part: nn.Module) -> None:
    """A recurrent network keeps a list of its weights beside them."""
    if isinstance(part, nn.RNNBase):
        part._flat_weights = [getattr(part, n, None) for n in part._flat_weights_names]
