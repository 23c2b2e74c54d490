"""From a Python file or a saved program to an exported program in core ATen, without weights.

    FILE.py:NAME   a function that returns (module, example inputs), or (module, positional, keyword inputs),
                   or (train_step, module, optimizer, example inputs) for a whole training step (`train_step`),
                   or a module class with `example_inputs` (a value, or a method that returns it)
    FILE.pt2       written by `torch.export.save`

Modules are built on the meta device (`shadow`) and exported with fake inputs, so weights are never allocated; the
shapes of the example inputs count, not their contents.  What PyTorch raises becomes a `TorchError` that names the place
and the next step.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Final

from ..building.python_file import load_object
from .attention import decompositions
from .branches import known_branches
from .context import TorchError
from .outputs import without_caches
from .own_gradients import hooks_of, own_gradients
from .resample import HANDLERS as UPSAMPLING
from .scans import written_out
from .shadow import hollow, watch_modules
from .stopped import mark_regions, plain_checkpoints
from .train_step import Stepping, optimizers, stepping
from .unreadable import QUANTIZED, unreadable, withhold

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_ALLOCATIONS: Final = 200_000
"""Objects after which Python looks for garbage while a program is exported; 700 or 2,000 otherwise."""

_TENSORS_ONLY: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""PyTorch's switch, read at every load."""

KEPT: Final = frozenset(
    {
        *("detach", "select_scatter", "log_sigmoid_forward", "hardsigmoid", "hardswish", "logit", "std", "sinc"),
        *UPSAMPLING,
    }
)
"""ATen operators that stay whole: an upsampling, one linear map per dimension, would become a hundred operators,
`detach` an `alias`, which does not stop gradients, a row that is written a mask of all rows, and functions with
corners what has other gradients there.
"""


@dataclass(frozen=True)
class Program:
    """`exported`: decomposed to core ATen.  `contents`: what is known of buffers, by stored name.  `notes`: what was
    done to the model, in words.  `attention`: whether attention is one operator, wherever it is recognised.  `step`:
    the training step whose forward pass it is, if it is one.  `own`: what has gradients that are not its derivative
    (`own_gradients`)."""

    name: str
    exported: ExportedProgram
    contents: Mapping[str, torch.Tensor]
    notes: Sequence[str] = ()
    attention: bool = True
    step: Stepping | None = None
    own: Sequence[str] = ()


def need_torch() -> None:
    """Raise `TorchError` if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise TorchError(
            "PyTorch", "is not installed; it is the extra [torch]: pip install 'shardproof[torch]'"
        ) from None


def load_program(spec: str, batch: int | None = None, attention: bool = True) -> Program:
    """The program behind FILE.py:NAME or FILE.pt2.  Raises `TorchError`."""
    need_torch()
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        with _few_collections():
            return from_file(Path(file), name, batch, attention)
    if batch is not None:
        raise TorchError(spec, "--batch does not apply to a saved program; its sizes were fixed by torch.export")
    return from_saved(Path(spec), attention)


def made_by(spec: str, batch: int | None) -> object:
    """What the factory of FILE.py:NAME returns."""
    file, _, name = spec.rpartition(":")
    found = load_object(Path(file), name)
    if not callable(found):
        raise TorchError(spec, "is no function")
    return found() if batch is None else found(batch=batch)


def saved_module(spec: str, batch: int | None) -> object:
    """The module of a saved program, with its example inputs."""
    import torch

    with _no_pickles(), _quiet():
        exported = torch.export.load(spec)
    args, kwargs = exported.example_inputs or ((), {})
    return exported.module(), args, kwargs


def from_saved(path: Path, attention: bool = True) -> Program:
    """A program written by `torch.export.save`."""
    import torch

    try:
        with _no_pickles(), _quiet() as log:
            exported = torch.export.load(str(path))
    except Exception as e:
        reasons = [r.exc_info[1] for r in log if r.exc_info and r.exc_info[1]]  # the error itself points to the log
        raise TorchError(
            f"{path}",
            f"is not a program saved by torch.export.save, or holds more than tensors: {_first((*reasons, e)[0])}",
        ) from e
    held = {**exported.state_dict, **exported.constants}
    parameters = set(exported.graph_signature.parameters)
    contents = {k: v for k, v in held.items() if k not in parameters and isinstance(v, torch.Tensor) and not v.is_meta}
    return Program(path.stem, _core(exported, f"{path}", attention), contents, attention=attention)


@contextmanager
def _no_pickles() -> Iterator[None]:
    """PyTorch tries a file as tensors only, and where that fails unpickles whatever it holds, which executes it;
    this keeps it to the first.
    """
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TENSORS_ONLY]
        else:
            os.environ[_TENSORS_ONLY] = before


def from_file(path: Path, name: str, batch: int | None, attention: bool = True) -> Program:
    """Build, on the meta device, what `name` of a Python file describes, and export it.  The file may import its
    neighbours.
    """
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        found = load_object(path, name)
        if not callable(found):
            raise TorchError(f"{path}:{name}", f"is a {type(found).__name__}; give a function or a module class")
        return build(found, name, batch, f"{path}:{name}", attention)
    finally:
        sys.path.remove(folder)


def build(
    factory: Callable[..., object],
    name: str,
    batch: int | None = None,
    place: str = "model",
    attention: bool = True,
) -> Program:
    """Export what the factory (function or module class) describes; it runs on the meta device."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._pytree import tree_map_only

    context, shadow = watch_modules()
    notes: list[str] = []
    try:
        with warnings.catch_warnings(), context:
            warnings.simplefilter("ignore")
            module, positional, keyword, step = _made(factory, batch, place)
    except TorchError:
        raise
    except Exception as e:
        why = f"cannot be built on the meta device (where tensors have shapes and no contents): {_first(e)}"
        if "meta" not in str(e).lower():
            raise TorchError(place, why) from e
        try:  # it reads what it computes: then with contents
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module, positional, keyword, step = _made(factory, batch, place)
        except Exception as again:
            raise TorchError(place, f"{why}; nor with its weights in memory: {_first(again)}") from again
        notes.append(f"its weights were in memory for a moment: it {why}")
    own = hooks_of(module)
    withhold(module, shadow.is_quantized)
    buffers = [*module.named_buffers(remove_duplicate=False)]
    contents = {k: v for k, b in buffers if (v := shadow.value(b) if b.is_meta else b) is not None}
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fake = hollow(module, mode, shadow.value)
    for key, t in [*_leaves(positional), *_leaves(keyword)]:
        if reason := QUANTIZED if shadow.is_quantized(t) else unreadable(t):
            raise TorchError(place, f"example input {key} is {reason}")
    # every input is a tensor of its own, also where the example passes one tensor twice
    args, kwargs = tree_map_only(torch.Tensor, lambda t: fake(t.detach().to("meta").clone()), (positional, keyword))
    for key, t in [*_leaves(args), *_leaves(kwargs)]:
        if any(n == 0 for n in t.shape):
            raise TorchError(
                place,
                f"example input {key} has shape {tuple(t.shape)}: every extent, also the batch, must be at least 1",
            )
    without_caches(module, notes)
    with own_gradients(own):
        exported = _export(module, args, kwargs, place)
    return Program(name, _core(exported, place, attention), contents, notes, attention, step, own)


@contextmanager
def _few_collections() -> Iterator[None]:
    """An export makes millions of objects that stay: looking through them for garbage takes an eighth of its time."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _leaves(tree: object) -> list[tuple[str, torch.Tensor]]:
    import torch
    from torch.utils._pytree import keystr, tree_flatten_with_path

    return [(keystr(k), v) for k, v in tree_flatten_with_path(tree)[0] if isinstance(v, torch.Tensor)]


def example(factory: Callable[..., object]) -> tuple[torch.nn.Module, tuple[object, ...], dict[str, object]]:
    """The module that a factory describes, where tensors have contents, and its positional and keyword inputs."""
    module, positional, keyword, _ = _made(factory, None, "model")
    without_caches(module, [])
    return module, positional, keyword


def _made(
    factory: Callable[..., object], batch: int | None, place: str
) -> tuple[torch.nn.Module, tuple[object, ...], dict[str, object], Stepping | None]:
    """Module, positional and keyword inputs, and the training step that its forward pass has become."""
    import torch

    options: dict[str, object] = {}
    if batch is not None:
        takes = inspect.signature(factory).parameters
        if "batch" not in takes:
            raise TorchError(
                place,
                f"--batch needs a parameter 'batch' of {place.rpartition(':')[2]}; it has: "
                f"{', '.join(takes) or 'none'}",
            )
        options["batch"] = batch
    made = factory(**options)
    if isinstance(made, torch.nn.Module):
        inputs = getattr(made, "example_inputs", None)
        if inputs is None:
            raise TorchError(
                place, "has no example_inputs; a module class needs them, a function returns (module, example inputs)"
            )
        made = (made, inputs() if callable(inputs) else inputs)
    step: Stepping | None = None
    match made:
        case (function, torch.nn.Module() as module, given, *_) if callable(function) and optimizers(given):
            step, made = stepping(function, module, given, place), (module, *made[3:])
    match made:
        case (torch.nn.Module() as module, tuple() as args, dict() as kwargs):
            return module, args, kwargs, step
        case (torch.nn.Module() as module, dict() as kwargs):
            return module, (), kwargs, step
        case (torch.nn.Module() as module, tuple() | list() as args):
            return module, tuple(args), {}, step
        case (torch.nn.Module() as module, torch.Tensor() as only):
            return module, (only,), {}, step
        case _:
            raise TorchError(
                place,
                f"must return (module, example inputs) or (train_step, module, optimizer, example inputs), returned "
                f"{type(made).__name__}",
            )


class _Collector(logging.Handler):
    """Keeps what is logged in a list."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _quiet() -> Iterator[list[logging.LogRecord]]:
    """PyTorch's logs are collected, not printed: what goes wrong is raised, and said once."""
    records: list[logging.LogRecord] = []
    handler = _Collector(records)
    names = [n for n in logging.root.manager.loggerDict if n.partition(".")[0] == "torch"]
    logs = [log for n in names if (log := logging.getLogger(n)).handlers]  # those of parts have handlers of their own
    before = [log.handlers for log in logs]
    for log in logs:
        log.handlers = [handler]
    try:
        yield records
    finally:
        for log, handlers in zip(logs, before, strict=True):
            log.handlers = handlers


@contextmanager
def _plain() -> Iterator[None]:
    """Attention that is decomposed is matrix products and softmax; a fused kernel for the CPU decomposes into strides
    that views reject.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with _quiet(), sdpa_kernel(SDPBackend.MATH):
        yield


def _export(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], place: str
) -> ExportedProgram:
    import torch

    try:
        with _plain(), warnings.catch_warnings(), known_branches(), plain_checkpoints():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, strict=False)
    except TorchError as e:
        raise TorchError(place, f"{e}") from None
    except Exception as e:
        raise TorchError(place, _why(e)) from e


def _core(exported: ExportedProgram, place: str, attention: bool) -> ExportedProgram:
    try:
        with _plain(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mark_regions(exported)
            table = decompositions(attention)
            for op in [op for op in table if op._schema.name.removeprefix("aten::") in KEPT]:
                del table[op]
            core = exported.run_decompositions(table)
            written_out(core, place)
            return core
    except TorchError:
        raise
    except Exception as e:
        raise TorchError(place, f"cannot be decomposed to core ATen: {_first(e)}") from e


def _why(error: Exception) -> str:
    """What torch.export said, and what to do."""
    text = str(error)
    if any(f.f_code.co_name in _PACKED for f, _ in walk_tb(error.__traceback__)) or _packs(error):
        return (
            "it packs sequences (torch.nn.utils.rnn.PackedSequence), whose shape depends on lengths that are data: "
            "give the recurrent layer the padded sequences, and mask what it returns behind each length"
        )
    if (
        "data-dependent" in text
        or "SymInt" in text
        or type(error).__name__
        in (
            "GuardOnDataDependentSymNode",
            "DataDependentOutputException",
        )
    ):
        at = re.search(
            r"raised this error:\s+File \"([^\"]+)\", line (\d+)|File \"([^\"]+)\", line (\d+), in forward", text
        )
        where = "" if at is None else f" at {at[1] or at[3]}:{at[2] or at[4]}"
        return (
            f"a shape or a branch depends on the contents of a tensor{where}: {_first(error)}; give it a static size "
            f"(pad and mask)"
        )
    return (
        f"torch.export cannot trace it: {type(error).__name__}: {_first(error)}; make the module exportable "
        f"(torch.export.export(module, inputs))"
    )


_PACKED: Final = frozenset({"pack_padded_sequence", "pad_packed_sequence", "pack_sequence"})


def _packs(error: Exception) -> bool:
    """Whether a recurrent layer was given a packed sequence."""
    frames = [f for f, _ in walk_tb(error.__traceback__) if f.f_code.co_filename.endswith("torch/nn/modules/rnn.py")]
    return any(type(v).__name__ == "PackedSequence" for f in frames for v in f.f_locals.values())


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
