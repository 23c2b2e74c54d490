"""What a pipelined step assumes: all that its numbers rest on, of every pair that is enumerated, of
the plan's views and of the sends between them.

    of a pair     the assumptions of its micro-batch on its view (`verify/plan/assumptions.py`), with the limit of the
                  file: that rows are built without one is how times of stages are found, no claim
    of all        which levels are priced by what, put together: a level counts where a view has two or more children of
                  it, or a send crosses it
    of sends      only where there is a second stage: they delay and do not wait; sends-by-bandwidth(level ..) names the
                  levels whose collectives are measured and that sends cross by bandwidth and latency all the same
    of batches    only where there is a second micro-batch: gradients are added in the products that make them
    of overlap    where reshardings run beside operators: inside a phase alone, on one stream, and statistics are
                  exchanged in their operators; then nothing says `no-overlap`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...proofs.pipelines.certificate import PipelineCertificate
from ..plan.assumptions import fixed_assumptions, measured_assumptions
from .bound import parts

ALWAYS = ("backward-in-one-piece", "synchronous-weights", "updates-after-the-last-backward")
OVERLAP = ("one-stream-of-redistributions", "phases-one-after-another", "statistics-in-their-operator")
SENDS, BATCHES = "sends-do-not-wait", "accumulation-in-the-product"


def required_flags(c: PipelineCertificate) -> set[str]:
    """What a file assumes whatever its numbers are."""
    counts = [*c.pairs, *((x.stages, x.micro) for x in c.interleaved)]
    found = {*ALWAYS, *(f"no-{word}" for word in c.forbidden), *(OVERLAP if c.overlap is not None else ())}
    found |= (
        {SENDS, *(["stages-in-the-machines-order"] if c.ordered else [])} if any(p > 1 for p, _ in counts) else set()
    )
    return found | ({BATCHES} if any(m > 1 for _, m in counts) else set())


def assumptions(c: PipelineCertificate, where: Space, graph_of: Callable[[int], Graph | None]) -> tuple[str, ...]:
    """Every assumption of a step, sorted.  `graph_of`: the graph of one of so many micro-batches, None where the batch
    cannot be cut so (then nothing is proved).
    """
    pairs = dict.fromkeys([*c.pairs, *((x.stages, x.micro) for x in c.interleaved)])
    sizes = [part for p, _ in pairs if (part := parts(c.machine, p)) is not None]
    crossed = {k for p, _ in pairs for k in levels_crossed(c.machine, p)}
    used = _resized(c.machine, [whole if k in crossed else max(s[k] for s in sizes) for k, whole in _levels(c.machine)])
    found = required_flags(c)
    for micro in dict.fromkeys(m for _, m in pairs):
        if (graph := graph_of(micro)) is None:
            continue
        found |= fixed_assumptions(graph, c.machine, where, c.memory) | (said := measured_assumptions(graph, used))
        odd = [c.machine.levels[k].name for k in sorted(crossed) if c.machine.levels[k].collectives]
        found |= {f"sends-by-bandwidth({' '.join(odd)})"} if said and odd else set()
    return tuple(sorted(found - {"no-overlap" if c.overlap is not None else ""}))


def levels_crossed(machine: Machine, stages: int) -> range:
    """Levels whose links a send between equal parts may use: from the outermost that separates any two inwards."""
    sizes = parts(machine, stages) if stages > 1 else None
    if sizes is None:
        return range(0)
    return range(next(k for k, whole in _levels(machine) if sizes[k] != whole), len(sizes))


def _levels(machine: Machine) -> Iterable[tuple[int, int]]:
    return enumerate(machine.hierarchy)


def _resized(machine: Machine, sizes: list[int]) -> Machine:
    """The machine with levels of these sizes, to be read, not to be planned on."""
    return replace(machine, levels=tuple(replace(x, size=size) for x, size in zip(machine.levels, sizes, strict=True)))
