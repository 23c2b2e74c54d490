"""Options that the verbs of the search share: who searches, for how long, with how many threads, and
the clock of a command.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

import click

from ...models.joint.rules import MOST_NODES, MOST_ROUNDS, NODES_ASKED, ROUNDS
from ...models.machine.parts import Collectives
from ...models.terminal.console import BEGUN, say
from ...models.terminal.options import RATE, SECONDS, SHARE, STEPS, THREADS, Command
from ..plans.effort import EffortName, effort_of
from ..plans.time_limit import TimeLimit
from ..selection.model.clock import DEFAULT_S, Clock, budget
from ..selection.model.interrupt import interruptible

_EFFORT_S: Final = "shardproof.effort_s"

INTERRUPTED = (
    "\ninterrupted: the best answer so far is checked and written (once more: end at once; what is being checked is "
    "written unchecked, what is searched for not at all)\n"
)
"""Said when the first Ctrl-C or SIGTERM arrives; the exit code is 5 unless the answer is proved."""


engine_option = click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt", "cp-sat"]),
    default="native",
    show_default=True,
    help="Who proposes a solution; without --alone the native search proves it. What was asked is printed.",
)

collectives_option = click.option(
    "--collectives",
    type=click.Choice(Collectives, case_sensitive=False),
    help="Programs of reductions: level by level (hierarchical), one collective each (library), or for every reduction "
    "the cheapest of one collective per block of neighbouring levels (synthesised). Default: what the machine file "
    "says, or hierarchical.",
)

offload_option = click.option(
    "--offload",
    type=RATE,
    help="With --recompute tensors: each may also lie in the memory of its device's host meanwhile, at this rate each "
    "way, such as 25GB/s. Default: what the machine file says (host), or nowhere.",
)

alone_option = click.option(
    "--alone",
    is_flag=True,
    help="The engine decides alone: it gets the whole problem, and its duals, messages or cores make the certificate.",
)


def rewrite_options(when: str) -> Callable[[Command], Command]:
    """Options for which rewrites are searched and how far: `rules`, `rewrite_rounds`, `rewrite_nodes`, `rewrite_time`;
    `when`: what they need.
    """

    def decorate(command: Command) -> Command:
        rules = click.option(
            "--rules",
            type=click.Path(path_type=Path),
            multiple=True,
            help=f"{when}: a library of proved rules (rules prove, rules generate) to rewrite with, in place of "
            "those that come along, beside the rules that are built in; may be given several times.",
        )
        rounds = click.option(
            "--rewrite-rounds",
            type=click.IntRange(1, MOST_ROUNDS),
            default=ROUNDS,
            show_default=True,
            help=f"{when}: how often all rules are tried, so that one builds on another.",
        )
        nodes = click.option(
            "--rewrite-nodes",
            type=click.IntRange(1, NODES_ASKED),
            default=MOST_NODES,
            show_default=True,
            help=f"{when}: equal operators that rules add at most; more make the search slower.",
        )
        time = click.option(
            "--rewrite-time",
            type=SECONDS,
            help=f"{when}: seconds of --time-limit in which rules add operators at most; what they have added by then "
            "is searched. [default: 30% of them, half of it for a first set of rules]",
        )
        return rules(rounds(nodes(time(command))))

    return decorate


def limit_options(
    help: str = "Wall-clock seconds for tables and search; then the best answer known is checked and written. Ctrl-C "
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


def _settle(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Let the effort be what options fall back to."""
    effort, names = effort_of(value), {p.name for p in ctx.command.params}
    ctx.meta[_EFFORT_S] = effort.seconds
    said: dict[str, object] = {"gap": effort.gap}
    if "vocabulary" in names and effort.space is not None:  # a plan; a strategy that is audited has its own space
        said["space_name"] = effort.space
    ctx.default_map = {**(ctx.default_map or {}), **said}
    return value


effort_option = click.option(
    "--effort",
    type=click.Choice(get_args(EffortName)),
    default="normal",
    show_default=True,
    is_eager=True,
    expose_value=False,
    callback=_settle,
    help="What counts where --time-limit, --gap and, for a plan, --space are not given: quick (60 s, 3%, "
    "one-per-level), normal (300 s, 0, the default space) or thorough (3600 s, 0, the default space).",
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


def clock_of(
    time_limit: float | None, work_limit: int | None, default_s: float = DEFAULT_S, gone_s: float = 0.0
) -> Clock:
    """The clock of a command line, where None stands for an option that was not given."""
    return budget("default" if time_limit is None else time_limit, work_limit, default_s, gone_s)


def start_limit(time_limit: float | None, work_limit: int | None, default_s: float = DEFAULT_S) -> TimeLimit:
    """The limit of a command, from the start of its process on.  Ctrl-C or SIGTERM lets it pass, until the command
    ends.
    """
    context, gone_s = click.get_current_context(), _gone_s()
    clock = clock_of(time_limit, work_limit, context.meta.get(_EFFORT_S, default_s), gone_s)
    limit = TimeLimit(clock, checks=True, announce=lambda text: say(f"note: {text}", err=True), gone_s=gone_s)
    context.with_resource(interruptible(limit.clock, INTERRUPTED))
    context.with_resource(limit.enforce())
    return limit


def reading(time_limit: float | None, work_limit: int | None) -> Clock:
    """The clock of a command that reads an answer and says more about it.  With seconds it ends with them: what it was
    about to say then is not said, and neither is what it knows nothing about before.
    """
    gone_s = _gone_s()
    clock = clock_of(time_limit, work_limit, gone_s=gone_s)
    if time_limit is not None:
        click.get_current_context().with_resource(TimeLimit(clock, gone_s=gone_s).enforce())
    return clock


def _gone_s() -> float:
    """Seconds since the process of a command line began."""
    now = time.monotonic()
    begun: float = click.get_current_context().meta.get(BEGUN, now)
    return max(0.0, now - begun)
