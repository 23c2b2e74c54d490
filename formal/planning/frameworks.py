"""A strategy file that is a configuration of another framework: `audit MODEL --strategy megatron.txt`.

The file holds what `models/sources/frameworks/flags.py` reads; the strategy places what it decides and leaves the rest
to the solver.
"""

from __future__ import annotations

from pathlib import Path

from ...models.files.input import regular
from ...models.layout.targets.degrees import Flags
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.sources.frameworks.flags import read_flags
from ...models.sources.frameworks.placements import splits
from ...models.text import InputError
from .strategy import MAX_FILE, Rule, Strategy, StrategyError


def framework_flags(path: Path | str) -> Flags | None:
    """The configuration in a file; None if it is none (a strategy file, or unreadable: `load_strategy` says how).

    Raises `StrategyError` for a configuration with an error.
    """
    try:
        with regular(Path(path)).open("rb") as f:
            text = f.read(MAX_FILE).decode()
    except (InputError, OSError, UnicodeDecodeError):
        return None
    try:
        return read_flags(text)
    except InputError as error:
        raise StrategyError(str(path), str(error)) from None


def strategy_of_flags(flags: Flags, graph: Graph, machine: Machine, place: str = "strategy") -> Strategy:
    """One rule per operator that the configuration decides.  Raises `StrategyError`.

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
