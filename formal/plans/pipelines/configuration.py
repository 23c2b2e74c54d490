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
        return compose_step(work, machine, flags, StepShape(micro_batches, max(1, share), hidden=hidden_by(settings)))
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
