"""What an exporter returns: the text of a file, and what the plan says that the target cannot."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ...models.communication.shardings import NotASharding
from ...models.machine.machine import Collectives, Machine
from ...models.text import InputError, bytes_text

NAMED: Final = 5
"""Operators that run whole, printed; `--json` and the file have all."""

Parts = tuple[tuple[str, str], ...]
"""(part of a plan, what the plan says of it)"""


@dataclass(frozen=True)
class Whole:
    """An operator of a pass whose function runs on whole tensors on every rank: `bytes` of its operands and result,
    which the plan keeps in parts.
    """

    operator: str
    function: str
    bytes: int


@dataclass(frozen=True)
class Exported:
    """`mesh`: names and sizes; `said`: layouts that the target expresses, `refused`: those that it does not.

    `done`: (part of the plan, what of it the file does) beside layouts; `left_out`: what the file does not do, so that
    the job has to; `whole`: operators that will run on whole tensors on every rank.
    """

    text: str
    mesh: tuple[tuple[str, int], ...]
    said: int
    refused: tuple[NotASharding, ...]
    done: Parts = ()
    left_out: Parts = ()
    whole: tuple[Whole, ...] = ()


def with_programs(made: Exported, machine: Machine) -> Exported:
    """The same, which also says that the job takes the collectives of its framework where the plan chose others."""
    if machine.collectives is Collectives.HIERARCHICAL:
        return made
    said = f"reductions of the plan take {machine.collectives.value} collectives; the job's take its framework's"
    return replace(made, left_out=(*made.left_out, ("collectives", said)))


def in_docstring(name: str) -> str:
    """A name of a plan as text inside a docstring: names come from files, and a file must not write code.

    >>> in_docstring("llama"), len(in_docstring(3 * chr(34)))  # every quote gets its backslash
    ('llama', 6)
    """
    return json.dumps(name)[1:-1]


def module_text(path: Path) -> str:
    """The text of a module after its docstring, without what it takes from its neighbours here."""
    text = path.read_text(encoding="utf-8")
    lines = text[text.index("from __future__") :].splitlines()
    return "\n".join(v for v in lines if not v.startswith(("from __future__", "from ."))).strip()


def refuse_parts(target: str, refused: Parts, layouts_only: bool) -> None:
    """Raises `InputError` that names every part of a plan that a target does not do, unless only layouts are asked for.

    >>> refuse_parts("jax", (), False)
    """
    if refused and not layouts_only:
        raise InputError(
            f"{target} files do not do what the plan says: " + "; ".join(f"{part}: {why}" for part, why in refused)
        )


def parts_text(title: str, parts: Parts) -> str:
    """Lines of a docstring that name parts of a plan.

    >>> print(parts_text("left out", (("loss", "none"),)))
    left out:
        loss             none
    """
    return "\n".join([f"{title}:", *(f"    {part:<16} {in_docstring(words)}" for part, words in parts)])


def left_text(who: str, left: Parts) -> str:
    """Lines of a docstring that say what else a plan says, if anything."""
    if not left:
        return ""
    return "\n" + parts_text(f"LAYOUTS ONLY.  {who} has to do what else the plan says", left) + "\n"


def said_parts(made_of: Parts, left: Parts, target: str) -> list[str]:
    """Lines for a terminal: parts of a plan that a file does, and that it leaves to the job."""
    out = (
        [f"beside the layouts, the job does as planned or raises: {', '.join(part for part, _ in made_of)}"]
        if made_of
        else []
    )
    if left:
        out.append(f"layouts only: what else the plan says is not in the {target} file, and is the job's to do:")
        out += [f"  {part}: {words}" for part, words in left]
    return out


def said_whole(whole: tuple[Whole, ...]) -> list[str]:
    """Lines for a terminal: operators that will run on whole tensors."""
    if not whole:
        return []
    most = sorted(whole, key=lambda w: -w.bytes)
    out = [f"{len(whole)} operators run on whole tensors on every rank, as DTensor has no rule for them:"]
    out += [f"  {w.operator}: {w.function}, {bytes_text(w.bytes)}" for w in most[:NAMED]]
    return [*out, f"  and {len(most) - NAMED} more (all in the file)"] if len(most) > NAMED else out


def parts_json(made: Exported) -> dict[str, object]:
    """What an exporter says beside layouts, for `--json`."""
    return {
        "done": dict(made.done),
        "left_out": dict(made.left_out),
        "whole": [[w.operator, w.function, w.bytes] for w in made.whole],
    }
