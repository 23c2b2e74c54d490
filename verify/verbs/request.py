"""What is asked of `check` for one file, and which kinds of files cannot do it: an option that a file has nothing for
is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.text import seconds_text
from ...proofs.container.canonical import ContainerError
from ..plan.own import ReaderSubject
from ..verdict import CheckResult
from .kinds import Effort, Problems

ENTRIES, MODEL, MACHINE = "entries of tables that are drawn", "model", "machine"
"""What an option needs of a file."""


@dataclass(frozen=True)
class Request:
    """`effort`: what is recomputed of the file, with its budget; `again`: that it is what `--second-opinion` asks for;
    `own`: what the reader means; `show`: the constants of machines; `about`: problems that were given.
    """

    effort: Effort
    again: bool
    own: ReaderSubject
    show: bool
    about: Problems

    def refuse(self, path: str, words: str, holds: frozenset[str]) -> None:
        """`ContainerError` for an option for which a file that holds these has nothing."""
        asked = (
            (self.again, "--second-opinion", ENTRIES, "all of it is recomputed"),
            (self.own.graph is not None, "--model", MODEL, "no plan to compare --model or --machine with"),
            (self.own.machine is not None, "--machine", MODEL, "no plan to compare --model or --machine with"),
            (self.show, "--show-machine", MACHINE, "there is nothing to show"),
        )
        for given, option, needs, why in asked:
            if given and needs not in holds:
                raise ContainerError(path, f"{words} holds no {needs}, which {option} is about: {why}; leave it out")


def claim_line(result: CheckResult, scale: int = 10**12, timed: bool = True) -> str:
    """One claim about a selection problem."""

    def number(value: int) -> str:
        return seconds_text(value, scale) if timed else str(value)

    parts = [f"  {result.kind:<12} {result.verdict.value}"]
    if result.cost is not None:
        parts.append(f"cost {number(result.cost)}")
    if result.lower_bound is not None and result.lower_bound != result.cost:
        parts.append(f"lower bound {number(result.lower_bound)}")
    if result.space and result.cost is not None:
        parts.append(f"space {result.space}")
    if result.coverage is not None:
        parts.append(result.coverage.words)
    if result.reason:
        parts.append(result.reason)
    return "; ".join(parts)
