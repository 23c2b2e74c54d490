"""This module reads a strategy file that is a configuration of another framework: `audit MODEL --strategy
megatron.txt`.

The file holds what `models/sources/frameworks/flags.py` reads; the strategy places what it decides and leaves the rest
to the solver.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ...models.files.input import regular
from ...models.layout.targets.degrees import Flags
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.sources.frameworks.flags import read_flags
from ...models.sources.frameworks.placements import splits
from ...models.text import InputError
from .strategy import MAX_FILE, Rule, Strategy, StrategyError

INTERLEAVED: Final = re.compile(
    r"--(num-layers-per-virtual-pipeline-stage|num-virtual-stages-per-pipeline-rank|virtual-pipeline-model-parallel-size)"
)
"""Words of Megatron for several parts of the model on one stage."""

SCHEDULE: Final = re.compile(r"pipeline_parallel_schedule\w*[\"']?[\s=:]+[\"']?([\w./-]*)")
"""torchtitan's schedule, in its TOML or as a flag; without one it is 1F1B."""

SEVERAL_PARTS: Final = ("interleaved", "loopedbfs", "zbv", "dualpipev")
"""How names of schedules with several parts on a stage begin."""

UNEQUAL: Final = re.compile(
    r"--((decoder|encoder)-(first|last)-pipeline-num-layers|account-for-(embedding|loss)-in-pipeline-split"
    r"|pipeline-model-parallel-(layout|split-rank)|encoder-pipeline-model-parallel-size)"
    r"|(pipeline_parallel_(split_points|layers_per_stage|(first|last)_stage_less_layers)|module_fqns_per_model_part)"
)
"""Words of Megatron and torchtitan for stages of unequal layers."""


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


def pipelined_flags(path: Path | str) -> Flags:
    """A configuration whose stages are what is asked about.  Raises `StrategyError` for what is none, and for stages
    that no plan has: interleaved ones.
    """
    flags = framework_flags(path)
    if flags is None:
        raise StrategyError(
            str(path), "are no settings of Megatron, DeepSpeed, FSDP or torchtitan", "pipelines take nothing else yet"
        )
    text = Path(path).read_text(encoding="utf-8")
    schedules = [name for name in SCHEDULE.findall(text) if name and name.lower() != "1f1b"]
    several = INTERLEAVED.findall(text) + [name for name in schedules if name.lower().startswith(SEVERAL_PARTS)]
    if several:
        raise StrategyError(
            str(path),
            f"{several[0]}: stages of several parts are no plans of ours yet",
            "leave it out to audit the same settings without interleaving",
        )
    if schedules:
        raise StrategyError(
            str(path), f"schedule {schedules[0]}: stages are audited under 1F1B", "leave it out to audit that"
        )
    if found := UNEQUAL.search(text):
        raise StrategyError(
            str(path), f"{found[0]}: stages are audited with equally many layers", "leave it out to audit those"
        )
    return flags


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
