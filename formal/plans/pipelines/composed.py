"""Composes the step of a whole configuration out of one layer of each kind, priced by the plan's model.

    stage    a_s = sum of its layers and ends, forward and backward, for one micro-batch
    step     m a_max + (sum a_s - a_max) / chunks + sends + gradients and weights that nothing hides + updates

    tensor      collectives of a layer; with overlap all but the first part is behind the products beside them
    context     keys and values go round while those that are here are worked on
    experts     rows go to their experts and come back, twice a pass
    sharded 3   weights are gathered before a layer, gradients scattered behind it, beside the layer before
    gradients   reduced once a step; with overlap behind the backward pass of the last micro-batch
    memory      that of a stage's devices: `step_memory`

What is claimed is an estimate, not a bound: the proved bound of a configuration is that of `given`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final, TypeVar

from ....models.cost.group_times import group_seconds, level_seconds, send_seconds
from ....models.layout.targets.degrees import Flags
from ....models.machine.machine import Collectives, Machine
from ....models.sources.frameworks.placements import nested_degrees
from ....models.text import InputError
from .parts import FIRST, ONCE, TIED, Meeting, Part, StageWork
from .step_memory import KEPT, Running, Storage, memory_of_stage

OVERLAPS: Final = ("tensor", "gradients", "weights", "sends")
"""What a framework may hide: collectives of tensor parallel devices, reductions of gradients, gathers of weights, sends
between stages."""

_PARTS: Final = ("Megatron", "NeMo")
"""Frameworks whose tensor parallel devices send a part each to the next stage."""

HOST: Final = Fraction(56, 10**6)
"""Seconds in which Python launches a kernel of a step that is not captured as a graph: an assumption, in the middle of
two sources that are far from each other.  25: BERT-large's step of 24 layers takes 33.8 ms eagerly on an H100, whatever
its rows are (tests/data/measured/gpu/h100-steps.csv).  125: a layer of Megatron's functional tests takes 6 ms, forward
and backward (hidden 512, A100, ../shared/data/measured/megatron).  Only steps of narrow models depend on it.
Kernels of both passes are counted, and the passes take the host equally long: backward has more of them, and no Python
between (BERT, GPT-2, Llama: 1.10, 1.10, 1.27 times forward, measured by us, tests/data/measured/host)."""


@dataclass(frozen=True)
class StepShape:
    """How a step is carried out beside its degrees: `micro_batches` of `micro_batch` samples on every copy, `chunks` of
    layers on every stage, `layers` in all (0: those of the graph), `ends`: embedding and output count as a layer each
    where stages are cut; `hidden`: of `OVERLAPS`; `host`: seconds in which a kernel is launched; `storage`: how the
    framework keeps what it has.
    """

    micro_batches: int
    micro_batch: int
    chunks: int = 1
    layers: int = 0
    ends: bool = False
    hidden: frozenset[str] = frozenset(OVERLAPS)
    host: Fraction = HOST
    storage: Storage = KEPT


@dataclass(frozen=True)
class Composed:
    """`seconds` of a step, `terms` of them; `parts`: the same by what is waited for, micro-batches by their kernels,
    collectives by the level whose links they use; `bound`: seconds that no completion is below in the plan's model, for
    the operators of its slowest stage alone; `memory`: bytes of every stage's devices by part; `mfu`: three times the
    work of products and attention forward (a causal mask's pairs once) against `peak` flop/s of `dtype`, the machine's
    own.
    """

    seconds: Fraction
    terms: Mapping[str, Fraction]
    parts: Mapping[str, Fraction]
    memory: tuple[Mapping[str, int], ...]
    mfu: Fraction
    peak: Fraction
    dtype: str
    bound: Fraction

    @property
    def memory_bytes(self) -> int:
        """Of the fullest device."""
        return max(sum(stage.values()) for stage in self.memory)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        fullest = max(range(len(self.memory)), key=lambda s: sum(self.memory[s].values()))
        return {
            "seconds": float(self.seconds),
            "memory_bytes": self.memory_bytes,
            "mfu": float(self.mfu),
            "peak": f"{float(self.peak) / 1e12:g} Tflop/s of {self.dtype}, as the machine's file has it",
            "terms": {name: float(value) for name, value in self.terms.items()},
            "parts": {name: float(value) for name, value in self.parts.items()},
            "memory": {"stage": fullest, **self.memory[fullest]},
        }


Terms = dict[str, Fraction]
"""What is waited for -> seconds."""

K = TypeVar("K")


class _Links:
    """The groups of a configuration on a machine."""

    def __init__(self, machine: Machine, flags: Flags) -> None:
        self.machine, self.copies = machine, flags.copies(machine.devices)
        tensor, context, experts, rest = nested_degrees(machine, flags, self.copies)
        self.tensor, self.context, self.experts = tensor, context, experts
        self.sharing = tuple(c * e * r for c, e, r in zip(context, experts, rest, strict=True))
        used = [t * s for t, s in zip(tensor, self.sharing, strict=True)]
        left = [level.size // n for level, n in zip(machine.levels, used, strict=True)]
        self.stage_level = next((j for j, n in enumerate(left) if n > 1), len(left) - 1)
        self.senders = min(machine.devices // flags.pp, prod(machine.hierarchy[self.stage_level + 1 :]))

    def by_name(self, what: str, found: Mapping[int, Fraction]) -> Terms:
        """Seconds by level, under the level's name."""
        return {f"{what}, {self.machine.levels[j].name}": x for j, x in found.items()}

    def meetings(self, found: list[Meeting]) -> Terms:
        """Of tensor parallel devices."""
        each = [level_seconds(self.machine, self.tensor, m.operation, m.size) for m in found]
        return self.by_name("tensor parallel", _total(each))

    def ring(self, size: int) -> Terms:
        """Keys and values once round the context parallel devices."""
        ways = prod(self.context)
        if ways == 1 or not size:
            return {}
        level = next(j for j, n in enumerate(self.context) if n > 1)
        once = send_seconds(self.machine, level, size, prod(self.machine.hierarchy[level + 1 :]))
        return self.by_name("context parallel", {level: (ways - 1) * once})

    def rows(self, size: int) -> Terms:
        """To the experts, and back."""
        found = level_seconds(self.machine, self.experts, "alltoall", size) if size else {}
        return self.by_name("experts", {j: 2 * x for j, x in found.items()})

    def handed_on(self, size: int, flags: Flags) -> Fraction:
        """What goes from stage to stage.  Tensor parallel devices that all have it whole send a part each, and gather
        it behind (Narayanan et al., Efficient Large-Scale Language Model Training on GPU
        Clusters, 2021, section 4.1); along a split sequence each has but its part.
        """
        parts = 1 if flags.sequence_parallel or flags.source not in _PARTS else flags.tp
        sent = send_seconds(self.machine, self.stage_level, Fraction(size, parts), self.senders)
        return sent + (group_seconds(self.machine, self.tensor, "all_gather", size) if parts > 1 else 0)

    def between_ends(self, size: int) -> Terms:
        """Gradients of a table that the first and the last stage have both."""
        pair = [2 if j == self.stage_level else 1 for j in range(len(self.machine.levels))]
        return self.by_name("tied gradients", level_seconds(self.machine, pair, "all_reduce", size))

    def of_sharing(self, what: str, operation: str, size: int) -> Terms:
        """Of devices that have the same weights."""
        return self.by_name(what, level_seconds(self.machine, self.sharing, operation, size))


def _total(found: Iterable[Mapping[K, Fraction]]) -> dict[K, Fraction]:
    """Sums under every key."""
    out = dict[K, Fraction]()
    for one in found:
        for key, value in one.items():
            out[key] = out.get(key, Fraction(0)) + value
    return out


def _sum(found: Mapping[str, Fraction]) -> Fraction:
    return sum(found.values(), Fraction(0))


def _exposed(found: Terms, hidden: Fraction, least: Fraction) -> Terms:
    """What is waited for of seconds of which `hidden` are behind other work, and `least` of them never."""
    whole = _sum(found)
    left = max(least, whole - hidden)
    return {name: x * left / whole for name, x in found.items()} if whole else {}


def compose_step(work: StageWork, machine: Machine, flags: Flags, carried: StepShape) -> Composed:
    """The step.  Raises `InputError` for stages that the layers cannot be cut into, and for machines whose reductions
    have a choice of programs.

    >>> from ....models.machine.machine import load_machine
    >>> from ....models.sources.training import build_step
    >>> from ....models.sources.zoo import build
    >>> from .stage_work import stage_work
    >>> step = build_step(build("llama", layers=1, batch=1, sequence=2048), "adam", precision="bf16-master")
    >>> box, flags = load_machine("dgx-h100:1x8"), Flags("Megatron", tp=4, pp=2)
    >>> found = compose_step(stage_work(step, box, flags, 1), box, flags, StepShape(8, 1, layers=32))
    >>> len(found.memory), 0 < found.mfu < 1, found.terms["bubble"] > 0
    (2, True, True)
    """
    if machine.collectives is not Collectives.HIERARCHICAL:
        raise InputError(
            f"machine {machine.name!r}: steps of a configuration are priced level by level, not with "
            f"{machine.collectives.value} collectives; leave 'collectives' out of the machine file"
        )
    links, cells = _Links(machine, flags), layers_of_stages(work, flags, carried)
    each = {name: _passes(part, work, links, flags, carried) for name, part in work.parts.items()}
    stages = [sum((_sum(each[name][0]) + _sum(each[name][1]) for name in names), Fraction(0)) for names in cells]
    slow = max(stages)
    m, chunks = carried.micro_batches, carried.chunks
    terms = {"micro-batches": m * slow, "bubble": (sum(stages, Fraction(0)) - slow) / chunks}
    repeated = _total(x for name in cells[stages.index(slow)] for x in each[name])
    parts = {name: m * x for name, x in repeated.items() if x} | {"bubble": terms["bubble"]}
    send = links.handed_on(work.stream, flags) if flags.pp > 1 else Fraction(0)
    waits = 2 * (flags.pp - 1) + (0 if "sends" in carried.hidden else 2 * chunks * m)
    terms["sends"] = waits * send
    parts |= links.by_name("sends", {links.stage_level: terms["sends"]})
    ends = [_end(names, each, work, links, flags, carried) for names in cells]
    for k, name in enumerate(("gradients", "weights", "updates")):
        found = max(ends, key=lambda x: _sum(_total(x)))[k]
        terms[name] = _sum(found)
        parts |= found
    seconds = sum(terms.values(), Fraction(0))
    layers = sum(sum(work.parts[n].work for n in names) for names in cells)
    peak = machine.device.peak(work.dtype)
    mfu = Fraction(3 * layers * m * links.copies) / (machine.devices * peak * seconds)
    held = tuple(
        memory_of_stage(names, work, Running(links.sharing, s, m, chunks), flags, carried.storage)
        for s, names in enumerate(cells)
    )
    least = m * max(sum((work.parts[n].least for n in names), Fraction(0)) for names in cells)
    return Composed(seconds, terms, {n: x for n, x in parts.items() if x}, held, mfu, peak, work.dtype, least)


def layers_of_stages(work: StageWork, flags: Flags, carried: StepShape) -> list[list[str]]:
    """Names of the parts of every stage.

    Raises `InputError` where stages of as many layers do not exist.
    """
    count, kinds = carried.layers or len(work.layers), work.layers
    names = [kinds[i * len(kinds) // count] for i in range(count)]
    cells = flags.pp * carried.chunks
    if carried.ends:
        names = ["first", *names, "last"]
    if len(names) % cells:
        raise InputError(
            f"{flags.source}: {count} layers are no {cells} equal runs (pp {flags.pp} x chunks {carried.chunks}); "
            "choose other stages"
        )
    run = len(names) // cells
    out: list[list[str]] = [[] for _ in range(flags.pp)]
    for k in range(cells):
        out[k % flags.pp] += names[k * run : (k + 1) * run]
    if not carried.ends:
        out[0].insert(0, "first")
        out[-1].append("last")
    if flags.pp > 1 and TIED in work.parts:
        out[-1].append(TIED)
    return out


def _passes(part: Part, work: StageWork, links: _Links, flags: Flags, carried: StepShape) -> tuple[Terms, Terms]:
    """Forward and backward of one micro-batch."""
    out = []
    forward, backward = (part.passes[kind] for kind in "FB")
    half = Fraction(forward.kernels + backward.kernels - backward.again, 2)
    issued = {"F": half, "B": half * (1 + Fraction(backward.again, max(1, forward.kernels)))}
    for kind in "FB":
        found = part.passes[kind]
        other = found.seconds - found.products
        if kind == "B" and flags.zero < 3:  # sharded sums are small
            other += part.summed * (carried.micro_batches - 1) / carried.micro_batches
        spent = {"products": found.products - found.pairs, "attention": found.pairs, "other kernels": other}
        together = links.meetings([x for x in found.meetings if not x.sorted_rows])
        if "tensor" in carried.hidden:
            together = _exposed(together, found.products, _sum(together) / flags.tp)
        around = links.ring(found.keys)
        around = _exposed(around, found.pairs, _sum(around) / max(1, flags.cp))
        sorted_rows = links.meetings([x for x in found.meetings if x.sorted_rows])
        spent = _total((spent, together, around, sorted_rows, links.rows(part.rows)))
        launched = carried.host * (issued[kind] + len(found.meetings))
        spent["launches"] = max(Fraction(0), launched - _sum(spent))
        if flags.zero == 3:
            moved = [links.of_sharing("sharded weights", "all_gather", part.used or part.stored)]
            if kind == "B":
                moved.append(links.of_sharing("sharded weights", "reduce_scatter", part.gradients))
            spent |= _exposed(_total(moved), _sum(spent), Fraction(0))
        out.append(spent)
    return out[0], out[1]


def _end(
    names: list[str],
    each: Mapping[str, tuple[Terms, Terms]],
    work: StageWork,
    links: _Links,
    flags: Flags,
    carried: StepShape,
) -> tuple[Terms, Terms, Terms]:
    """Gradients, weights and updates of a stage, once a step."""
    parts = [work.parts[name] for name in names]
    ways = prod(links.sharing)
    share = ways if flags.zero else 1
    updates = sum((p.passes["U"].seconds for p in parts), Fraction(0)) / share
    casts = work.parts[ONCE].passes["F"].seconds * sum(p.used for p in parts)
    everything = sum(p.used for name, p in work.parts.items() if name != TIED)
    updates += casts / everything / share if everything else Fraction(0)
    apart = flags.pp > 1 and TIED in work.parts and (FIRST in names or TIED in names)
    tied = links.between_ends(work.parts[TIED].gradients) if apart else {}
    if flags.zero == 3 or ways == 1:
        return tied, {}, {"updates": updates}
    summed = sum(p.gradients for p in parts)
    gradients = links.of_sharing("gradients", "reduce_scatter" if flags.zero else "all_reduce", summed)
    used = sum(p.used or p.stored for p in parts) if flags.zero else 0
    weights = links.of_sharing("weights", "all_gather", used)
    runs = max(1, len(names))
    if "gradients" in carried.hidden:
        work_behind = sum((_sum(each[n][1]) for n in names), Fraction(0))
        gradients = _exposed(gradients, work_behind, _sum(gradients) / runs)
    if "weights" in carried.hidden:
        weights = _exposed(weights, sum((_sum(each[n][0]) for n in names), Fraction(0)), _sum(weights) / runs)
    return _total((gradients, tied)), weights, {"updates": updates}
