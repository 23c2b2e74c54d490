"""This module holds options that the verbs of the search share: who searches, for how long, with how many threads, and
the clock of a command.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from ...models.terminal.console import say
from ...models.terminal.options import SECONDS, SHARE, STEPS, THREADS, Command
from ..planning.time_limit import TimeLimit
from ..selection.model.clock import DEFAULT_S, Clock, budget
from ..selection.model.interrupt import interruptible

INTERRUPTED = (
    "\ninterrupted: the best answer so far is checked and written (once more: end at once, nothing is written)\n"
)
"""Said when the first Ctrl-C or SIGTERM arrives; the exit code is 5 unless the answer is proved."""


engine_option = click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt"]),
    default="native",
    show_default=True,
    help="Who looks for the solution; the proof is native. What was asked and answered is printed.",
)


def limit_options(
    help: str = "Seconds of the wall for tables and search; then the best answer known is checked and written. Ctrl-C "
    "or SIGTERM ends them early, a second one everything.",
    default: float = DEFAULT_S,
) -> Callable[[Command], Command]:
    """Options for how long is searched: `time_limit` and `work_limit`, which `budget` makes a clock of."""

    def decorate(command: Command) -> Command:
        time = click.option("--time-limit", type=SECONDS, help=f"{help} [default: {default:g}; none with --work-limit]")
        work = click.option(
            "--work-limit",
            type=STEPS,
            help="Steps of work instead of seconds, or beside them: the same answer on every machine, however busy; "
            "24M are about 24 seconds.",
        )
        return time(work(command))

    return decorate


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


def asked(time_limit: float | None, work_limit: int | None, default_s: float = DEFAULT_S) -> Clock:
    """The clock of a command line, where None stands for an option that was not given."""
    return budget("default" if time_limit is None else time_limit, work_limit, default_s)


def started(time_limit: float | None, work_limit: int | None, default_s: float = DEFAULT_S) -> TimeLimit:
    """The limit of a command, from its first line on.  Ctrl-C or SIGTERM lets it pass, until the command ends."""
    limit = TimeLimit(
        asked(time_limit, work_limit, default_s), checks=True, announce=lambda text: say(f"note: {text}", err=True)
    )
    click.get_current_context().with_resource(interruptible(limit.clock, INTERRUPTED))
    return limit
