"""What the plan's own model says of a published configuration: one layer priced, the step composed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from shardproof.formal.plans.pipelines.composed import HOST, Composed, StepShape, compose_step
from shardproof.formal.plans.pipelines.parts import StageWork
from shardproof.formal.plans.pipelines.stage_work import stage_work
from shardproof.models.cost.kernels import Kernels
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.parts import MachineError
from shardproof.models.sources.load import with_attention
from shardproof.models.sources.training import build_step
from shardproof.models.text import InputError

from .rows import Attention, Model, Published


@dataclass(frozen=True)
class Told:
    """A row with what is predicted: seconds, what its operators alone take in any completion, and the seconds by what is
    waited for.
    """

    row: Published
    seconds: float
    bound: float
    words: str
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.seconds / self.row.seconds - 1

    @property
    def told(self) -> float:
        """Predicted seconds a token and GPU."""
        return self.seconds * self.row.gpus / self.row.tokens

    @property
    def measured(self) -> float:
        """Measured seconds a token and GPU."""
        return self.row.seconds * self.row.gpus / self.row.tokens


@lru_cache(maxsize=32)
def machine(name: str) -> Machine:
    """A machine of the package."""
    return load_machine(name)


@lru_cache(maxsize=2048)
def _work(
    model: Model,
    seq: int,
    kind: str,
    flags: Flags,
    again: bool,
    attention: Attention,
    kernels: Kernels,
    frozen: bool,
    precision: str,
) -> StageWork:
    graph = with_attention(model.graph(flags.micro_batch * flags.ep, seq, flags.tp), attention)
    step = build_step(graph, "adamw", None, recompute="all" if again else "none", precision=precision)
    return stage_work(step, machine(kind), flags, flags.micro_batch, kernels, frozen)


def of_row(row: Published, again: bool) -> Composed:
    """The configuration of a row, every layer computed again or none."""
    shape = replace(row.model, layers=1)
    degrees = replace(row.flags, pp=1, zero=0)
    one = row.machine.partition(":")[0]
    work = _work(shape, row.seq, one, degrees, again, row.attention, row.kernels, row.frozen, row.precision)
    carried = StepShape(
        row.micro_batches,
        row.flags.micro_batch,
        row.chunks,
        row.model.layers,
        row.ends,
        row.hidden,
        Fraction(0) if row.captured else HOST,
    )
    return compose_step(work, machine(row.machine), row.flags, carried)


def predicted(row: Published) -> Told | str:
    """The prediction, or why there is none."""
    try:
        sides = [(of_row(row, bool(k)), Fraction(w)) for k, w in ((0, 1 - row.again), (1, row.again)) if w]
    except (InputError, MachineError) as error:
        return f"not priced: {str(error)[:160]}"
    seconds = sum((c.seconds * w for c, w in sides), Fraction(0))
    bound = min(c.bound for c, _ in sides)
    words = ", ".join(f"{k} {float(v):.3g}" for k, v in sides[-1][0].terms.items())
    names = sorted({n for c, _ in sides for n in c.parts})
    parts = {n: float(sum((c.parts.get(n, Fraction(0)) * w for c, w in sides), Fraction(0))) for n in names}
    return Told(row, float(seconds), float(bound), words, parts)
