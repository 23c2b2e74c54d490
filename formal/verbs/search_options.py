"""This module holds options that the verbs of the search share: who searches, for how long, with how many threads, and
the clock of a command.
"""

from __future__ import annotations

import click

from ...models.terminal.console import say
from ...models.terminal.options import SECONDS, SHARE, THREADS
from ..planning.time_limit import TimeLimit
from ..selection.model.clock import Clock
from ..selection.model.interrupt import interruptible

INTERRUPTED = (
    "\ninterrupted: the best answer so far is checked and written (Ctrl-C again: end at once, nothing is written)\n"
)
"""Said when the first Ctrl-C arrives; the exit code is 5 unless the answer is proved."""


engine_option = click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt"]),
    default="native",
    show_default=True,
    help="Who looks for the solution; the proof is native. What was asked and answered is printed.",
)
time_option = click.option(
    "--time-limit",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Seconds of the wall for tables and search; then the best plan known is checked and written. Ctrl-C ends them "
    "early, a second Ctrl-C everything.",
)
gap_option = click.option(
    "--gap",
    type=SHARE,
    default="0",
    show_default=True,
    help="Stop when (cost - bound) / cost is at most this (0.01 or 1%).",
)
threads_option = click.option(
    "--threads",
    type=THREADS,
    default=2,
    show_default=True,
    help="Threads of the search; plain elimination and the search for large problems with memory rows use one.",
)


def started(seconds: float) -> TimeLimit:
    """The time limit of a command, from its first line on.  Ctrl-C lets it pass, until the command ends."""
    limit = TimeLimit(Clock(seconds), checks=True, announce=lambda text: say(f"note: {text}", err=True))
    click.get_current_context().with_resource(interruptible(limit.clock, INTERRUPTED))
    return limit
