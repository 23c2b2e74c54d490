"""Settings against what is audited: the sizes and types of the model, its batch, and what the options
say of the training step.  What differs is an error that names both; what cannot be compared is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from ...program.attention import inner
from ...program.graph import Graph, Role
from ...program.operators import NodeKind
from ...text import InputError
from ..precision import parse_precision as parsed_precision
from ..training.derived import derived_keys
from ..training.recompute import ATTENTION
from ..training.settings import parse_optimizer as parsed_optimizer
from .roles import of_zoo, roles
from .settings import Settings, Size

_WHOLE: Final = (NodeKind.CONTRACT, NodeKind.GROUPED, NodeKind.ATTENTION, NodeKind.GATHER)
"""Kinds whose operators have a width, a sequence or heads whole, where others may have parts of it."""

_AXES: Final = {
    "batch": "b",
    "width": "m",
    "hidden": "f",
    "sequence": "s",
    "vocabulary": "v",
    "experts": "e",
    "head": "d",
}
_WORDS: Final = {
    "layers": "layers",
    "width": "a width of",
    "hidden": "a feed-forward width of",
    "heads": "heads",
    "kv_heads": "heads of keys",
    "head": "a head width of",
    "sequence": "a sequence of",
    "vocabulary": "a vocabulary of",
    "experts": "experts",
    "chosen": "experts of a token",
}
_PADDING: Final = 128
"""Megatron pads the vocabulary to a multiple of this times tensor parallelism."""


def sizes_of(graph: Graph) -> dict[str, frozenset[int]]:
    """Extents that the forward pass of a transformer has, under the names of `settings.SIZES`; what it has no axis for
    is left out.

    >>> from ..zoo import build
    >>> found = sizes_of(build("llama", layers=2, batch=8, sequence=64))
    >>> {name: sorted(found[name]) for name in ("layers", "heads", "kv_heads", "head")}
    {'layers': [2], 'heads': [32], 'kv_heads': [8], 'head': [128]}
    """
    later, known = derived_keys(graph), roles(graph)
    zoo = of_zoo(graph)
    axes: dict[str, set[int]] = {}
    out: dict[str, frozenset[int]] = {}
    for op in graph.operators:
        if op.name in later:
            continue
        own: dict[tuple[str, bool], int] = {}  # a square weight has a width on both sides
        for axis in op.axes if zoo or op.kind in _WHOLE else ():
            if letter := known.letters[op.name].get(axis.name):
                side = letter, axis.combine is None
                own[side] = own.get(side, 1) * axis.extent
        if op.kind is NodeKind.ATTENTION and not zoo:
            own["d", False] = prod(op.axis(name).extent for name in inner(op) if op.axis(name).combine is not None)
        for (letter, _), extent in own.items():
            axes.setdefault(letter, set()).add(extent)
        if op.function == "top_k_mask" and "k" in dict(op.attributes):
            out["chosen"] = frozenset(k for name, k in op.attributes if name == "k" and isinstance(k, int))
    if known.layers:
        out["layers"] = frozenset({known.layers})
    for name, letter in _AXES.items():
        if letter in axes:
            out[name] = frozenset(axes[letter])
    heads = axes.get("h") or {k * g for k in axes.get("k", ()) for g in axes.get("g", {1})}
    if heads:
        out["heads"] = frozenset(heads)
        out["kv_heads"] = frozenset(heads if "h" in axes else axes["k"])
    return out


def fit_settings(settings: Settings, graph: Graph) -> Settings:
    """The settings of the model `graph`, with the sizes that it has no axis for among what is not compared.

    Raises `InputError` for sizes, types, attention and experts that are not the model's.
    """
    source, found = settings.flags.source, sizes_of(graph)
    wrong = [_difference(size, found[size.name]) for size in settings.sizes if _differs(settings, size, found)]
    if wrong:
        raise InputError(
            f"{source}: {'; '.join(dict.fromkeys(wrong))}: settings of another model than {graph.name}; give the sizes "
            "of one to the other"
        )
    for most in settings.limits:
        if (own := max(found.get(most.name, {0}))) > most.value:
            what = "sequences" if most.name == "batch" else "tokens of a sequence"
            raise InputError(
                f"{source}: {most.word}: at most {most.value} {what}, {graph.name} has {own}; give the sizes of one to "
                "the other"
            )
    functions = {op.function for op in graph.operators}
    if settings.family is not None and ("rms_norm" not in functions or "silu" not in functions or "experts" in found):
        raise InputError(
            f"{source}: {settings.family.word}: {graph.name} is no dense decoder of RMS norms and gated layers; "
            "give the settings of this model"
        )
    if settings.flags.ep > 1 and "experts" not in found:
        raise InputError(f"{source}: experts over {settings.flags.ep} devices, and {graph.name} has none; leave it out")
    if settings.attention is not None and {"attention", "softmax"} & functions:
        fused = "attention" in functions
        if fused != (settings.attention.value == "fused"):
            has, give = ("one operator", "matrices") if fused else ("products and softmax of whole scores", "operator")
            raise InputError(
                f"{source}: {settings.attention.word}: attention of {graph.name} is {has}; give --attention {give}, or "
                "leave it out"
            )
    without = tuple(s.word for s in settings.sizes if s.name not in found)
    return replace(settings, uncompared=(*settings.uncompared, *without))


def _differs(settings: Settings, size: Size, found: dict[str, frozenset[int]]) -> bool:
    if size.name not in found or size.value in found[size.name]:
        return False
    if size.name == "vocabulary":
        step = _PADDING * settings.flags.tp
        return -(-size.value // step) * step not in found[size.name]
    return True


def _difference(size: Size, found: frozenset[int]) -> str:
    has, what = " and ".join(str(n) for n in sorted(found)), _WORDS[size.name]
    shown = size.word if size.word.endswith(" alone") else f"{size.word} {size.value}"
    return f"{shown}, the model has {f'{what} {has}' if what.endswith('of') else f'{has} {what}'}"


def of_a_pass(settings: Settings, graph: Graph, devices: int) -> Settings:
    """Settings that are audited for a graph as it is: one pass, or one step, over its whole batch.

    Raises `InputError` for micro-batches and recomputation, which such an audit does not say.
    """
    flags, trained = settings.flags, bool(graph.state)
    again = settings.recompute
    if again is not None and again.value != "none" and not again.usual:
        raise InputError(
            f"{flags.source}: {again.word}: a pass computes nothing again; audit the training step, "
            f"--train adam --recompute {again.value}, or leave it out"
        )
    if not trained:
        stated = (settings.optimizer, settings.gradients)
        settings = replace(settings, idle=(*settings.idle, *(s.word.split(" ")[0] for s in stated if s is not None)))
    _agree_on_half(settings, graph, None)
    if trained:
        _agree_on_gradients(settings, graph, None)
    known, later = roles(graph).letters, derived_keys(graph)
    batches = {
        a.extent
        for op in graph.operators
        for a in op.axes
        if known[op.name].get(a.name) == "b" and op.name not in later
    }
    if len(batches) != 1:
        return settings
    (batch,) = batches
    copies = flags.copies(devices)
    share, whole = flags.micro_batch * copies, flags.global_batch
    once = f"audit the training step (--train adam) to have them one after another, or give --batch {share}"
    if share and batch != share:
        steps = f"{whole // share} micro-batches of {share}" if whole and whole % share == 0 else f"passes of {share}"
        raise InputError(
            f"{flags.source}: {flags.micro_batch} examples on each of {copies} copies make {steps}, and one pass "
            f"over a batch of {batch} is audited; {once}"
        )
    if share and trained and whole not in (0, share):
        raise InputError(f"{flags.source}: a global batch of {whole} is {whole / share:g} passes of {share}; {once}")
    if not share and flags.steps > 1 and whole:
        share = whole // flags.steps
        if batch != share:
            raise InputError(
                f"{flags.source}: {flags.steps} micro-batches of {share}, and the batch is {batch}; {once}"
            )
    elif not share and whole and whole != batch:
        raise InputError(f"{flags.source}: a global batch of {whole}, the model has {batch}; give --batch {whole}")
    return settings


def of_a_step(settings: Settings, graph: Graph, train: str, recompute: str, precision: str | None) -> Settings:
    """Settings that are audited for the training step of the model `graph` with these options.

    Raises `InputError` where optimizer, recomputation or types differ.
    """
    source, said = settings.flags.source, settings.optimizer
    if settings.serves:
        raise InputError(f"{source}: are settings of a server, which trains nothing; leave --train out")
    name, _ = parsed_optimizer(train)
    if said is not None and said.value != ("adam" if name == "adamw" else name):
        raise InputError(f"{source}: {said.word}, and --train {name}; give one optimizer in both")
    again = settings.recompute
    if again is not None and again.value != recompute and not again.usual:
        raise InputError(
            f"{source}: {again.word}, and --recompute {recompute}; give --recompute {again.value}, or leave it out of "
            "the settings"
        )
    _agree_on_half(settings, graph, precision)
    _agree_on_gradients(settings, graph, precision)
    if again is not None and again.value == ATTENTION and any(op.kind is NodeKind.ATTENTION for op in graph.operators):
        settings = replace(settings, idle=(*settings.idle, again.word))  # one operator, which keeps no scores
    return settings


def _weights(graph: Graph) -> str:
    """The type of the weights of a model: that of the largest one."""
    found = [t for t in graph.tensors if t.role is Role.PARAMETER]
    return max(found, key=lambda t: (t.elements, t.name)).dtype if found else ""


def _agree_on_half(settings: Settings, graph: Graph, precision: str | None) -> None:
    said, own = settings.half, _weights(graph)
    has = own if precision is None else parsed_precision(precision).half
    if said is None or said.usual or not has or said.value == has:
        return
    options = " or ".join(_ways(said.value, own))
    raise InputError(
        f"{settings.flags.source}: {said.word}: {graph.name} computes in {has}; give {options}, or leave it out"
    )


def _ways(wanted: str, own: str) -> Iterator[str]:
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(wanted)
    yield f"the model with dtype={wanted}"
    if short is not None and own != wanted:
        yield f"--precision {short}-master with --train"


def _agree_on_gradients(settings: Settings, graph: Graph, precision: str | None) -> None:
    said = settings.gradients
    has = _weights(graph) if precision is None else parsed_precision(precision).reduce
    if said is None or not has or said.value == has:
        return
    kind = "" if precision is None else precision.partition(":")[0]
    give = f"--precision {kind or 'bf16-master'}" + ("" if said.value == "float32" else f":reduce={said.value}")
    raise InputError(
        f"{settings.flags.source}: {said.word}: gradients of {graph.name} are summed over devices in {has}; give "
        f"{give} with --train, or leave it out"
    )
