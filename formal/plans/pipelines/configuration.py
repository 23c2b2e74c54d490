"""What step and memory a framework's settings give on a machine, by the plan's own model of times.

What the settings hide behind work is what these frameworks do with the words that are there:

    Megatron      --overlap-grad-reduce, --overlap-param-gather, --tp-comm-overlap; kernels of maps are fused
    DeepSpeed     overlap_comm
    FSDP          gathers and reductions always; torchtitan too, and with `compile` it fuses maps; accelerate, axolotl
                  and the Trainer run FSDP, copies whose gradients are summed beside the backward pass, or DeepSpeed

What they run beside the operators (`models.cost.beside`) follows the same words: Megatron its softmax and its loss in
kernels of their own unless `--no-masked-softmax-fusion` and `--cross-entropy-loss-fusion` say otherwise, and sums of
gradients inside the product unless `--no-gradient-accumulation-fusion`; NeMo's recipes fuse the loss, XLA fuses what
MaxText has; the others leave loss and sums to PyTorch.  nanotron has Megatron's loss, attention, norms and rotary
embeddings of flash-attn, and one product for query, key and value and one for both halves of a gate
(huggingface/nanotron 03b83fc, src/nanotron/models/llama.py).  Dropout is that of the model.

What they keep (`step_memory.Storage`):

    Megatron, NeMo   a half copy of the weights beside float32, gradients added up in float32; the update takes nothing
    nanotron         the same
    DeepSpeed        a half copy; buffers of `reduce_bucket_size` gradients, two where they overlap.  The update of the
                     stages 1 and 2 joins its gradients and casts them to float32, all at once: 6 bytes a weight of its
                     share; at stage 3 4 bytes, `sub_group_size` weights at once (deepspeedai/DeepSpeed 7dee2e0,
                     runtime/zero/stage_1_and_2.py: step).  Adam that is not fused takes two temporaries beside the cast
                     gradients (hiyouga/LlamaFactory, issue 1221: out of memory in the second).  Stage 3 leaves
                     `stage3_max_live_parameters` weights gathered
    FSDP             float32 shards and gradients; two units gathered in the half type, one of whole gradients; all of
                     them where gathers are not limited (pytorch/pytorch, FSDP: `limit_all_gathers`).  PyTorch's Adam
                     takes one temporary of its share where it is not fused
    autocast         float32; casts of weights until the pass is over; buffers as large as all gradients (DDP)
    MaxText          as FSDP, with the update in one program

Where nothing compiles maps, RMS norms and softmaxes are written out in float32, and autograd keeps that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ....models.cost.kernels import Kernels
from ....models.machine.machine import Machine
from ....models.machine.parts import MachineError
from ....models.pipelines.micro import batch_of
from ....models.sources.frameworks.settings import Settings
from ....models.sources.training import TrainingStep
from ....models.text import InputError
from .composed import Composed, StepShape, compose_step
from .stage_work import stage_work
from .step_memory import KEPT, Storage

_WORDS: Final = (
    ("--overlap-grad-reduce", "gradients"),
    ("--overlap-param-gather", "weights"),
    ("--tp-comm-overlap", "tensor"),
    ("overlap_comm", "gradients"),
)
_ALWAYS: Final = ("FSDP", "torchtitan")
"""Frameworks that gather and reduce beside their work without being told."""

_WRAPPERS: Final = ("accelerate", "axolotl", "Hugging Face's Trainer")
"""Those that do so where they do not drive DeepSpeed."""

_COMPILED: Final = frozenset(
    {"compile.enable", "training.compile", "compile.deepcompile", "dynamo_backend", "dynamo_config.dynamo_backend"}
    | {"torch_compile", "torch_compile_backend", "torch_compile_mode"}
)
"""Words under which PyTorch's compiler fuses maps, where they are not switched off."""


def configuration(step: TrainingStep, machine: Machine, settings: Settings, micro_batches: int) -> Composed | str:
    """The step as its settings run it, in so many micro-batches; the reason, where it cannot be priced.

    >>> from ....models.machine.machine import load_machine
    >>> from ....models.sources.frameworks.flags import read_settings
    >>> from ....models.sources.training import build_step
    >>> from ....models.sources.zoo import build
    >>> step = build_step(build("llama", layers=2, batch=16, sequence=128), "adam", precision="bf16-master")
    >>> box = load_machine("dgx-h100:1x8")
    >>> found = configuration(step, box, read_settings("--tensor-model-parallel-size 4 --micro-batch-size 1"), 8)
    >>> isinstance(found, str), len(found.memory)
    (False, 1)
    """
    flags = settings.flags
    try:
        share = batch_of(step.graph) // (micro_batches * flags.copies(machine.devices))
        work = stage_work(step, machine, replace(flags, pp=1), max(1, share), kernels_of(settings))
        shape = StepShape(micro_batches, max(1, share), hidden=hidden_by(settings), storage=storage_of(settings))
        return compose_step(work, machine, flags, shape)
    except (InputError, MachineError) as error:
        return str(error)


def words_of(settings: Settings) -> tuple[str, ...]:
    """All words that a framework's settings say and do not switch off, of which some change no placement."""
    words = settings.words
    if words is None:
        return ()
    return (*(name for name, _ in words.read), *(name for name in words.no_effect if name not in words.off))


def kernels_of(settings: Settings) -> Kernels:
    """Which kernels a framework runs by what its settings say.

    >>> from ....models.sources.frameworks.flags import read_settings
    >>> kernels_of(read_settings("--tensor-model-parallel-size 2 --cross-entropy-loss-fusion")).loss
    'one'
    >>> kernels_of(read_settings("FULL_SHARD")).loss
    'float32'
    """
    said = set(words_of(settings))
    match settings.flags.source:
        case "Megatron":
            return Kernels(
                softmax="--no-masked-softmax-fusion" not in said,
                loss="one" if "--cross-entropy-loss-fusion" in said else "vocabulary",
                sums="--no-gradient-accumulation-fusion" in said,
                experts="apart",
            )
        case "NeMo":
            return Kernels(softmax=True, experts="apart")
        case "MaxText":
            return Kernels()
        case "nanotron":
            return Kernels(chains=False, attention="flash", loss="vocabulary", sums=True, flash=True, joined=True)
        case _:
            compiled = bool(said & _COMPILED)
            return Kernels(chains=compiled, loss="one" if compiled else "float32", sums=True)


def storage_of(settings: Settings) -> Storage:
    """How a framework keeps what it has, by what its settings say.

    >>> from ....models.sources.frameworks.flags import read_settings
    >>> storage_of(read_settings("--tensor-model-parallel-size 2")).update
    0
    >>> text = '{"zero_optimization": {"stage": 2, "reduce_bucket_size": 1e6}, "optimizer": {"type": "AdamW"}}'
    >>> found = storage_of(read_settings(text))
    >>> found.update, found.bucket, storage_of(read_settings('{"zero_optimization": {"stage": 2}}')).update
    (6, 1000000, 10)
    """
    source, adam = settings.flags.source, settings.optimizer is None or settings.optimizer.value == "adam"
    deep = source == "DeepSpeed" or any(word.startswith("deepspeed") for word in words_of(settings))
    told = "" if settings.optimizer is None else settings.optimizer.word
    if deep:
        return _deepspeed(settings, fused=source == "DeepSpeed" and bool(told) or "fused" in told or not adam)
    loose = 0 if source in _ONE_UPDATE or "fused" in told or not adam else _FLOAT
    if settings.masters == "cast" or (settings.masters == "none" and not settings.flags.zero):
        return Storage("cast", update=loose, buckets=0 if source == "NeMo" else 1)
    if source in ("FSDP", "torchtitan", "MaxText") or source in _WRAPPERS and settings.flags.zero:
        return Storage(
            "gathered", update=loose, wide=settings.masters == "beside", live=None if _runs_ahead(settings) else 0
        )
    return KEPT


def _runs_ahead(settings: Settings) -> bool:
    """Whether the host gathers units before the devices need them: where FSDP is told not to limit its gathers, and
    under the arguments of a Trainer that drove FSDP itself (before transformers 4.31), which did not.
    """
    said = settings.words
    told = "" if said is None else said.text("gathers")
    return told == "ahead" or (not told and said is not None and "own_units" in said.values)


_FLOAT: Final = 4
"""Bytes of a temporary of Adam's, for a weight."""

_ONE_UPDATE: Final = ("Megatron", "NeMo", "nanotron", "MaxText", "torchtitan")
"""Frameworks whose Adam is one kernel unless they are told otherwise."""

_BUCKET: Final = 500_000_000
_SUB_GROUP: Final = 1_000_000_000
_LIVE: Final = 1_000_000_000
"""DeepSpeed's defaults, in weights (deepspeed/runtime/zero/config.py)."""


def _deepspeed(settings: Settings, fused: bool) -> Storage:
    said, zero = settings.words, settings.flags.zero
    temporaries = 0 if fused else 2 * _FLOAT

    def number(name: str, default: int) -> int:
        value = None if said is None else said.values.get(name, ("", None))[1]
        return int(value) if isinstance(value, int | float) else default

    buckets = 2 if "gradients" in hidden_by(settings) else 1
    bucket = number("bucket", _BUCKET)
    if zero == 3:
        live, group = number("live", _LIVE), number("sub_group", _SUB_GROUP)
        return Storage(update=_FLOAT + temporaries, updated=group, bucket=bucket, buckets=buckets, live=live)
    cast = _FLOAT + 2 if zero else 0
    update = max(cast, _FLOAT + temporaries - 2) if zero else temporaries
    return Storage(update=update, bucket=bucket if zero else 0, buckets=buckets if zero else 0)


def hidden_by(settings: Settings) -> frozenset[str]:
    """What the settings hide behind work, of `composed.OVERLAPS`.

    >>> from ....models.sources.frameworks.flags import read_settings
    >>> sorted(hidden_by(read_settings("--tensor-model-parallel-size 2 --overlap-grad-reduce")))
    ['gradients']
    >>> sorted(hidden_by(read_settings("base_model: x\\nmicro_batch_size: 1\\nfsdp: [full_shard]\\n")))
    ['gradients', 'weights']
    >>> hidden_by(read_settings('{"zero_optimization": {"stage": 2, "overlap_comm": false}}'))
    frozenset()
    """
    words = words_of(settings)
    said = {word.partition("=")[0].split(".")[-1] for word in words}
    found = {what for word, what in _WORDS if word in said}
    wrapped = settings.flags.source in _WRAPPERS and not any(word.startswith("deepspeed") for word in words)
    return frozenset(found | ({"gradients", "weights"} if settings.flags.source in _ALWAYS or wrapped else set()))
