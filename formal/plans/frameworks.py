"""Reads a strategy that is a configuration of another framework: `audit MODEL --strategy megatron.txt`.

The file, or the text itself, holds what `models/sources/frameworks/flags.py` reads.  What it says of the model and of
the training step is compared with those that are audited (`models/sources/frameworks/fit.py`); the strategy places what
the degrees decide, and leaves the rest to the solver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...models.files.input import regular
from ...models.layout.targets.degrees import Flags
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.sources.frameworks.fit import fit_settings, of_a_pass, of_a_step
from ...models.sources.frameworks.flags import read_settings
from ...models.sources.frameworks.placements import splits
from ...models.sources.frameworks.settings import Settings
from ...models.text import InputError
from .strategy import Rule, Strategy, StrategyError

MAX_SETTINGS: Final = 1 << 18
"""Bytes: what is longer is a strategy, or nothing that is read."""


def framework_settings(source: Path | str) -> Settings | None:
    """The configuration in a file, or in the text itself where there is no such file; None if it is none (a strategy
    file, or unreadable: `strategy_file` says how).

    Raises `StrategyError` for a configuration that cannot be judged whole.

    >>> framework_settings("FULL_SHARD").flags.zero
    3
    """
    text = _text(source)
    if text is None or len(text) > MAX_SETTINGS:
        return None
    try:
        return read_settings(text)
    except InputError as error:
        raise StrategyError(str(source)[:200], str(error)) from None


def _text(source: Path | str) -> str | None:
    path = Path(source)
    try:
        if not path.exists():
            return str(source)
        with regular(path).open("rb") as f:
            data = f.read(MAX_SETTINGS + 1)
        return None if len(data) > MAX_SETTINGS else data.decode()
    except (InputError, OSError, ValueError):  # a name that no file can have is a text
        return str(source) if len(str(source)) > 255 or "\n" in str(source) else None


def pipelined_settings(source: Path | str) -> Settings:
    """A configuration whose stages are what is asked about.  Raises `StrategyError` for what is none."""
    settings = framework_settings(source)
    if settings is None:
        raise StrategyError(
            str(source), "are no settings of a framework that is read", "pipelines take nothing else yet"
        )
    return settings


def settings_of_step(
    settings: Settings, graph: Graph, train: str, recompute: str, precision: str | None, place: str
) -> Settings:
    """The settings, of the training step of the model `graph`.  Raises `StrategyError` where they are of another."""
    try:
        return of_a_step(fit_settings(settings, graph), graph, train, recompute, precision)
    except InputError as error:
        raise StrategyError(place, str(error)) from None


def strategy_of_settings(settings: Settings, graph: Graph, machine: Machine, place: str = "strategy") -> Strategy:
    """What the settings decide of the operators of a graph as it is.  Raises `StrategyError`."""
    try:
        found = fit_settings(settings, graph)
        rules = tuple(Rule(name, split) for name, split in splits(found.flags, graph, machine))
        return Strategy(rules, place, of_a_pass(found, graph, machine.devices))
    except InputError as error:
        raise StrategyError(place, str(error)) from None


def strategy_of_flags(flags: Flags, graph: Graph, machine: Machine, place: str = "strategy") -> Strategy:
    """One rule per operator that degrees decide.  Raises `StrategyError`.

    >>> from ...models.machine.machine import load_machine
    >>> from ...models.sources.zoo import build
    >>> graph = build("llama", layers=1, batch=8, sequence=64)
    >>> found = strategy_of_flags(Flags("Megatron", tp=4), graph, load_machine("dgx-a100:2x8"))
    >>> dict((r.key, r.split) for r in found.rules)["layer0.ffn.down"]
    (('f', (('gpus', 4),)), ('b', (('nodes', 2), ('gpus', 2))))
    """
    try:
        return Strategy(tuple(Rule(name, split) for name, split in splits(flags, graph, machine)), place)
    except InputError as error:
        raise StrategyError(place, str(error)) from None
