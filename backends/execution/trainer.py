"""Trains a plan on virtual ranks: a thread per rank and step; parameters and moments stay on their ranks in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from ...models.text import InputError
from ..kernels import Array
from . import checkpoint
from .held import RankBlocks, lasting
from .interpreter import RankError
from .pipeline import Results
from .repeatable import Repeatable
from .run import slices
from .training_run import StartState, StepDone, base_of, scalar_of


class Trainer:
    """A plan that is trained step by step.  `begun`: where it begins; `timeout_s`: how long ranks may wait."""

    def __init__(self, runs: Repeatable, begun: StartState, timeout_s: float = 300.0) -> None:
        self.begun, self._runs, self._together = begun, runs, runs.virtual(timeout_s)
        self._base = base_of(begun)
        mine = begun.ranks or ({},) * runs.ranks
        self._held = [RankBlocks(slices(self._base), blocks) for blocks in mine]
        self._found: list[Results] = []
        self._data: dict[str, Array] = {}
        self._done, self._broken = begun.step, False

    @property
    def step_number(self) -> int:
        """Steps that were done, those of the run that was resumed among them."""
        return self._done

    def step(self) -> StepDone:
        """The next step.  Raises `RankError` naming step, rank and operator when one fails, `InputError` for data that
        does not fit, or behind a step that failed.
        """
        if self._broken:
            raise InputError("a step of this training failed; begin again, from the last state that was saved")
        begun_s, number = time.perf_counter(), self._done + 1
        data = self.begun.feed.at(number)
        found: list[Results] = [{} for _ in self._held]
        errors: list[RankError] = []

        def work(rank: int) -> None:
            try:
                found[rank] = self._on_rank(rank, number, data)
            except RankError as e:
                errors.append(e)
                self._together.abort()

        threads = [
            threading.Thread(target=work, args=(r,), name=f"rank {r}", daemon=True) for r in range(len(self._held))
        ]
        self._broken = True
        try:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        except BaseException:  # interrupted: nobody waits for ranks that wait for each other
            self._together.abort()
            raise
        if errors:
            first = min(errors, key=lambda e: "another rank failed" in e.reason)
            raise RankError(first.rank, f"step {number}, {first.place}", first.reason)
        self._found, self._data, self._done, self._broken = found, data, number, False
        loss = self.begun.loss
        return StepDone(
            number, scalar_of(self.results([] if loss is None else [loss]), loss), time.perf_counter() - begun_s
        )

    def _on_rank(self, rank: int, number: int, data: Mapping[str, Array]) -> Results:
        held = self._held[rank]
        try:
            return self._together.steps[rank](number, held.source(data), held)
        except RankError:
            raise
        except Exception as e:
            raise RankError(rank, "keeping the next values", f"{type(e).__name__}: {e}") from e

    def results(self, names: Collection[str] | None = None) -> dict[str, Array]:
        """Results of the last step, whole, in digit shape; `names`: those that are wanted; None: all."""
        wanted = self.begun.graph.results if names is None else names
        return self._runs.whole(wanted, {**self._base, **self._data}, self._found)

    def state(self) -> dict[str, Array]:
        """Parameters and what optimizers remember, whole, in digit shape."""
        if self._done == self.begun.step:
            return {name: np.array(v) for name, v in self.begun.state.items()}
        values = dict(self.begun.graph.state)
        found = self.results(tuple(values.values()))
        return {n: found[values[n]] if n in values else np.array(self._base[n]) for n in lasting(self.begun.graph)}

    def save(self, folder: Path | str) -> Path:
        """Write the state to DIR/step-N, for all ranks; a state of this step is replaced.  Raises `OutputError`, also
        where the folder holds a later state.
        """
        if self._broken:
            raise InputError("a step of this training failed; what is left of it is no state")
        where = Path(folder)
        checkpoint.check_folder(where, self._done, force=False)
        graph = self.begun.graph
        if self._done == self.begun.step and not self.begun.ranks:
            state = {n: [(tuple((0, x) for x in graph.tensor(n).shape), self._base[n])] for n in lasting(graph)}
            return checkpoint.save(where, self._done, self.begun.origin, [state])
        blocks = [held.blocks for held in self._held]
        ranks = checkpoint.with_fixed(blocks, graph, lambda n: self._base[n])
        return checkpoint.save(where, self._done, self.begun.origin, ranks)
