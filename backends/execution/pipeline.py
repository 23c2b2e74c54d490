"""Runs a pipelined step: every rank does its view's tasks in the order of the schedule, on virtual ranks.

    F(i)   receive x from the stage before, run the forward instructions, send x on
    B(i)   receive the gradient from the stage behind, run the backward instructions, send it on; sums add up
    U      after all of them, once, stage by stage of the view; where updates read what another stage has, round by
           round: receive, run, send

A view has one stage, or several chunks of the model, which are stages too.  Ranks of neighbouring stages have the same
block of what crosses a cut, so rank r sends to rank r.  A send does not wait; a receive does.  Results of micro-batches
are put side by side along the batch, or added where they are sums.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Protocol

import numpy as np

from ..kernels import Array, is_half, round_to, widen
from ..lowering.program import Box, Compute, Move, Slots
from ..lowering.stages import StagedProgram, StageProgram, last_uses
from ..trace import Recorder, Span
from ..transport import Transport, TransportError
from ..transport.virtual import Hub, VirtualTransport
from .held import Blocks, RankBlocks
from .interpreter import Held, RankError, Source, Surroundings, move_label, run_part, statistics_label
from .live import alone
from .reference import as_stored, check_inputs
from .run import Traffic, assemble, run_threads, slices, traffic

Results = dict[tuple[str, int], Array]
"""(result, micro-batch): a rank's block; `ONCE` for what a step has once."""


ONCE = -1
"""The micro-batch of what a step has, or sends, once."""


class Post(Protocol):
    """Carries blocks between stages: of a micro-batch between neighbours, once a step between any."""

    def send(self, stage: int, rank: int, tensor: str, micro_batch: int, block: Array) -> None:
        """To `rank` of `stage`; does not wait."""
        ...

    def receive(self, stage: int, rank: int, tensor: str, micro_batch: int) -> tuple[Array, float]:
        """What this rank, `rank` of `stage`, is sent, and when that was (`time.perf_counter`)."""
        ...


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """`outputs`: whole tensors in digit shape.  `traffic`: of every movement that ran, per stage; `sent`: (tensor that
    goes from stage to stage, elements that all ranks sent in the step, elements that the plan's price counts).
    """

    outputs: dict[str, Array]
    traffic: tuple[Traffic, ...]
    sent: tuple[tuple[str, int, int], ...]
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, eq=False)
class Seat:
    """The place of a rank: its view, its number within, its transport per stage of the view, its letters to others."""

    view: int
    rank: int
    transports: Mapping[int, Transport]
    post: Post


def run_view(
    staged: StagedProgram,
    seat: Seat,
    source: Source,
    xp: ModuleType,
    recorder: Recorder | None = None,
    told: Callable[[int], None] | None = None,
    pace: float = 0.0,
    held: RankBlocks | None = None,
) -> Results:
    """One rank of a view.  `told(n)`: before task n.  `pace`: a task lasts at least so many times its planned time;
    what is left of that after its work is slept.  `held`: gets the next values of parameters.  Raises `RankError`, with
    the rank of the whole machine.
    """
    view, rank, post = seat.view, seat.rank, seat.post
    around = {s: Surroundings(seat.transports[s], source, xp, recorder) for s in staged.stages_of(view)}
    works = {s: _Work(staged, s, rank, reached) for s, reached in around.items()}
    results: Results = {}
    try:
        for number, (s, phase, i) in enumerate(staged.order[view]):
            if told is not None:
                told(number)
            results |= works[s].task(phase, i, post, pace)
        for number in range(len(staged.stages[view].rounds)):
            for work in works.values():
                work.update(number, post)
        for work in works.values():
            results |= work.update_results()
        if held is not None:
            held.renew(_renewed(staged, works, results))
    except RankError as e:
        raise RankError(view * staged.devices + rank, e.place, e.reason) from e
    return results


def _renewed(staged: StagedProgram, works: Mapping[int, _Work], results: Results) -> Blocks:
    """The next values of parameters that the stages of a view hold.  What a pass gives is that of the first
    micro-batch, or a sum over them, as in `whole_results`.
    """
    out: dict[str, list[tuple[Box, Array]]] = {}
    for work in works.values():
        for parameter, value in staged.graph.state:
            load = work.stage.loads[work.rank].get(parameter)
            if value in work.late:
                block = work.late[value]
            elif (value, 0) in results and value in (*work.stage.results["F"], *work.stage.results["B"]):
                parts = [results[value, i] for i in range(staged.micro if value in staged.added else 1)]
                block = sum(parts[1:], parts[0])
            elif load is not None and any(parameter in work.stage.used(work.rank, p) for p in work.positions):
                raise RankError(
                    work.rank, f"stage {work.number}", f"has no next value of {parameter!r}, which it reads"
                )
            else:
                continue
            if load is not None:
                out.setdefault(parameter, []).append((load.box, alone(block)))
    return out


class _Work:
    """What one rank does for a stage: blocks of micro-batches under way, and sums over those that are through."""

    def __init__(self, staged: StagedProgram, s: int, rank: int, around: Surroundings) -> None:
        self.staged, self.number, self.rank, self.around = staged, s, rank, around
        self.xp, self.recorder = around.xp, around.recorder
        self.stage, self.slots = staged.stages[s], dict[int, dict[str, Array]]()
        early = [t for p in "FB" for t in self.stage.results[p]]
        self.ends = last_uses(self.stage, (*self.stage.summed, *self.stage.kept, *early))
        self.total: dict[str, Array] = {}
        self.base: dict[str, Array] = {}
        self.late: dict[str, Array] = {}
        self.halves: set[str] = set()  # 16 bits add up in 32

    @property
    def positions(self) -> tuple[int, ...]:
        """Of the instructions that the stage runs."""
        return tuple(p for steps in self.stage.steps.values() for p in steps)

    def perform(self, phase: str, here: dict[str, Array], micro_batch: int, steps: tuple[int, ...]) -> None:
        """Instructions of a phase on blocks that are here."""
        stage, rank, xp = self.stage, self.rank, self.xp
        held = Held(here)

        def read(tensor: str, box: tuple[tuple[int, int], ...]) -> Array:
            block: Array = xp.asarray(self.around.source(tensor, self.staged.box(tensor, box, micro_batch)))
            return block

        def behind(position: int) -> None:
            if phase != "U":
                for slot in self.ends.get(position, ()):
                    here.pop(slot, None)
                    held.exact.pop(slot, None)

        around = replace(self.around, source=read)
        for position in steps:
            for slot in stage.used(rank, position):
                if slot not in here and slot in stage.loads[rank]:
                    load = stage.loads[rank][slot]
                    here[slot] = read(load.tensor, load.box)
            run_part(stage.program, rank, (position,), around, held, behind)

    def task(self, phase: str, i: int, post: Post, pace: float) -> Results:
        """Forward or backward of micro-batch i, with what comes before it and goes behind it."""
        s, stage, staged, rank, recorder = self.number, self.stage, self.staged, self.rank, self.recorder
        here = self.slots.setdefault(i, {})
        came, goes = stage.arrives[phase], stage.leaves[phase]
        begun = 0.0 if recorder is None else recorder.now()
        try:
            if came is not None:
                block, sent_s = post.receive(s, rank, came, i)
                here[came] = self.xp.asarray(block)
                time.sleep(max(0.0, sent_s + pace * staged.sends[s + (phase == "B")] - time.perf_counter()))
        except Exception as e:
            raise RankError(rank, f"receiving {came!r} of micro-batch {i}", f"{type(e).__name__}: {e}") from e
        if recorder is not None and came is not None:
            recorder.add(f"receive {came} of micro-batch {i}", "communication", begun)
        task, clock = 0.0 if recorder is None else recorder.now(), time.perf_counter()
        self.perform(phase, here, i, stage.steps[phase])
        time.sleep(max(0.0, clock + pace * staged.seconds[s][phase] - time.perf_counter()))
        if recorder is not None:
            recorder.add(f"{phase}{i} of stage {s}", "data", task)
        if goes is not None:
            post.send(s + 1 if phase == "F" else s - 1, rank, goes, i, here[goes])
        results = {(t, i): here[t] for t in stage.results[phase]}
        if phase == "B":
            for slot in stage.summed:
                self.halves |= {slot} if is_half(here[slot]) else set()
                part = widen(self.xp, here[slot])
                self.total[slot] = part if slot not in self.total else self.total[slot] + part
            self.base = {slot: here[slot] for slot in stage.kept}
            del self.slots[i]
        return results

    def update(self, number: int, post: Post) -> None:
        """A round of what runs once a step."""
        stage, recorder, once = self.stage, self.recorder, self.stage.rounds[number]
        if number == 0:
            tensor_of, graph = Slots(stage.program.graph).tensor_of, stage.program.graph
            for slot in self.halves:
                self.total[slot] = round_to(self.xp, self.total[slot], graph.tensor(tensor_of[slot]).dtype)
            self.late = {**self.base, **self.total}
        begun = 0.0 if recorder is None else recorder.now()
        for letter in once.arrives:
            try:
                self.late[letter.slot] = self.xp.asarray(post.receive(self.number, self.rank, letter.tensor, ONCE)[0])
            except Exception as e:
                place = f"receiving {letter.tensor!r} from stage {letter.stage}"
                raise RankError(self.rank, place, f"{type(e).__name__}: {e}") from e
        if recorder is not None and once.arrives:
            recorder.add(f"receive {', '.join(x.tensor for x in once.arrives[:2])}", "communication", begun)
        begun = 0.0 if recorder is None else recorder.now()
        self.perform("U", self.late, 0, once.steps)
        if recorder is not None and once.steps:
            recorder.add(f"updates of stage {self.number}", "data", begun)
        for letter in once.leaves:
            post.send(letter.stage, self.rank, letter.tensor, ONCE, self.late[letter.slot])

    def update_results(self) -> Results:
        """Results of all rounds."""
        return {(t, ONCE): self.late[t] for t in self.stage.results["U"]}


class Letters:
    """`Post` between threads.  `sent[tensor]`: elements."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._there = timeout_s, threading.Condition()
        self._held: dict[tuple[int, int, str, int], tuple[Array, float]] = {}
        self.sent: dict[str, int] = {}
        self._over = False

    def abort(self) -> None:
        """Wake everyone: a rank has failed."""
        with self._there:
            self._over = True
            self._there.notify_all()

    def send(self, stage: int, rank: int, tensor: str, micro_batch: int, block: Array) -> None:
        """See `Post`."""
        with self._there:
            self._held[stage, rank, tensor, micro_batch] = block.copy(), time.perf_counter()
            self.sent[tensor] = self.sent.get(tensor, 0) + int(block.size)
            self._there.notify_all()

    def receive(self, stage: int, rank: int, tensor: str, micro_batch: int) -> tuple[Array, float]:
        """See `Post`."""
        key = stage, rank, tensor, micro_batch
        with self._there:
            if not self._there.wait_for(lambda: self._over or key in self._held, self._timeout_s):
                raise TransportError(f"nothing came within {self._timeout_s:g} s")
            if key not in self._held:
                raise TransportError("another rank failed")
            return self._held.pop(key)


def run_pipeline(
    staged: StagedProgram,
    inputs: Mapping[str, Array],
    timeout_s: float = 120.0,
    trace: bool = False,
    pace: float = 0.0,
) -> PipelineResult:
    """Run all ranks of all views as threads of this process.  `pace`: see `run_view`.

    Raises `GraphError` for inputs that do not fit, `RankError` naming rank and operator when one fails.
    """
    stored = staged.stages[0].program.stored
    arrays = check_inputs(staged.graph, inputs)
    arrays = as_stored(staged.graph, arrays) if stored else arrays
    letters, devices, origin_s = Letters(timeout_s), staged.devices, time.perf_counter()
    hubs = [Hub(timeout_s) for _ in staged.stages]
    where = [(view, r) for view in range(staged.views) for r in range(devices)]
    transports = [
        {r: VirtualTransport(hub, r, staged.hierarchy, np) for r in range(devices)} for hub in hubs
    ]  # of every stage
    recorders = [Recorder(n, origin_s) if trace else None for n in range(len(where))]
    results: list[Results] = [{} for _ in where]
    errors: list[RankError] = []

    def abort() -> None:
        letters.abort()
        for hub in hubs:
            hub.abort()

    def work(n: int) -> None:
        view, r = where[n]
        mine = {s: transports[s][r] for s in staged.stages_of(view)}
        try:
            results[n] = run_view(staged, Seat(view, r, mine, letters), slices(arrays), np, recorders[n], pace=pace)
        except RankError as e:
            if not any(hub.failed for hub in hubs):
                errors.append(e)
            abort()

    run_threads(work, len(where), abort)
    if errors:
        raise errors[0]
    found: list[Traffic] = []
    for s, stage in enumerate(staged.stages):
        found += traffic(stage.program, [transports[s][r] for r in range(devices)], often(stage, staged.micro))
    priced = {
        t: staged.micro * prod(stage.program.graph.tensor(t).shape)
        for stage in staged.stages
        for t in stage.leaves.values()
        if t is not None
    }
    for letter in (x for stage in staged.stages for once in stage.rounds for x in once.leaves):
        priced[letter.tensor] = priced.get(letter.tensor, 0) + letter.elements
    return PipelineResult(
        whole_results(staged, arrays, results),
        tuple(found),
        tuple((t, letters.sent.get(t, 0), n) for t, n in priced.items()),
        tuple(span for r in recorders if r is not None for span in r.spans),
    )


def often(stage: StageProgram, micro: int) -> dict[str, int]:
    """How often the stage runs what it books under a label."""
    out = {}
    for phase, positions in stage.steps.items():
        for p in positions:
            match stage.program.ranks[0][p]:
                case Move(movement=n):
                    out[move_label(n)] = 1 if phase == "U" else micro
                case Compute(operator=n, statistics=statistics) if statistics:
                    out[statistics_label(stage.program.graph.operators[n].name)] = 1 if phase == "U" else micro
                case _:
                    pass
    return out


def whole_results(
    staged: StagedProgram, arrays: Mapping[str, Array], found: Sequence[Results], names: Collection[str] | None = None
) -> dict[str, Array]:
    """The graph's results from the ranks' blocks.  `names`: those that are wanted; None: all."""
    out: dict[str, Array] = {}
    wanted = [name for name in staged.graph.results if names is None or name in names]
    for s, stage in enumerate(staged.stages):
        view = s % staged.views
        blocks = found[view * staged.devices : (view + 1) * staged.devices]

        def assemble_result(
            name: str, i: int, stage: StageProgram = stage, blocks: Sequence[Results] = blocks
        ) -> Array:
            shape = stage.program.graph.tensor(name).shape
            return assemble(np, name, shape, stage.boxes(name), [b[name, i] for b in blocks])

        for name in [n for n in stage.results["U"] if n in wanted]:
            out[name] = assemble_result(name, ONCE)
        for name in [n for n in (*stage.results["F"], *stage.results["B"]) if n in wanted]:
            parts = [assemble_result(name, i) for i in range(staged.micro)]
            if name in staged.batched:
                out[name] = np.concatenate(parts, axis=staged.batched[name])
            elif name in staged.added:
                out[name] = sum(parts[1:], parts[0])
            else:
                out[name] = parts[0]
    for name in wanted:
        if name not in out:
            out[name] = widen(np, arrays[name]) if is_half(arrays[name]) else arrays[name]
    return {name: out[name] for name in wanted}
