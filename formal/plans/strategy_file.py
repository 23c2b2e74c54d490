"""Reads a strategy from a file: JSON of a user's, or a plan, whose placements are taken by name for the model at hand,
which may have other sizes.

A plan's operators and copies keep their names where a program is planned with other numbers for its sizes, another
batch or another machine with the same names of levels.  What does not fit there (an axis that a degree does not divide
in the space asked for, a name that is gone) is refused by name; nothing is believed of the file but what it chose.
"""

from __future__ import annotations

from pathlib import Path

from ...models.files.input import regular
from ...models.layout.classes import copy_key, operator_key
from ...models.text import InputError
from ...proofs.container.archive import read_container
from ...proofs.container.canonical import ContainerError
from ...proofs.plan.bundle import decode_plan
from ...proofs.portfolio.file import taken_plan
from .strategy import MAX_FILE, ChoiceList, Rule, Strategy, StrategyError, read_strategy, split_of


def load_strategy(path: Path | str) -> Strategy | ChoiceList:
    """Read a strategy file.  Raises `StrategyError`."""
    place = str(path)
    try:
        with regular(Path(path)).open("rb") as f:
            raw = f.read(MAX_FILE + 1)
    except InputError as e:
        raise StrategyError(place, str(e).removeprefix(f"{place}: ")) from None
    except OSError as e:
        raise StrategyError(place, f"cannot be read: {e.strerror or e}") from None
    if len(raw) > MAX_FILE:
        raise StrategyError(place, f"is larger than {MAX_FILE} bytes")
    if raw[:2] == b"PK":
        return _of_plan(raw, place)
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise StrategyError(place, f"is not UTF-8 text: {e.reason}") from None
    return read_strategy(text, place)


def _of_plan(raw: bytes, place: str) -> Strategy:
    """The placements of a plan of one program on the whole machine."""
    try:
        members = taken_plan(read_container(raw))
        if "plan.json" not in members or "joint.json" in members:
            raise StrategyError(
                place,
                "is no plan of placements alone",
                "stages, overlap, submeshes and rewrites decide more than a strategy says",
            )
        plan = decode_plan(members)
    except ContainerError as error:
        raise StrategyError(place, f"cannot be read as a plan: {error}") from None
    levels = [level.name for level in plan.machine.levels]
    rules = [Rule(operator_key(name), split_of(p, levels)) for name, p in plan.choices.operators]
    rules += [Rule(copy_key(name), split_of(p, levels)) for name, p in plan.choices.copies]
    return Strategy(tuple(rules), place)
