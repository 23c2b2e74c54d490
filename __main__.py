"""The front door: `python -m shardproof VERB ..`.

Thin on purpose: every verb lives in the room that does its work and is loaded only when it is called, so that `check`
never loads a solver.  Results are published by `front_door.py`, which alone sees both `formal` and `verify`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

_BEGUN = time.monotonic() - time.process_time()
"""When this process began, as far as Python knows: a time limit counts from then on."""


@contextmanager
def starting() -> Iterator[None]:
    """While modules are loaded a Ctrl-C ends the process at once: inside an import it would come out as a
    traceback, or as a broken library.
    """
    try:
        before = (
            signal.signal(signal.SIGINT, _leave)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler
            else None
        )
    except ValueError:  # not the main thread: Ctrl-C does not come here
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"error: interrupted before anything was done\n")
    if asks_json(sys.argv[1:]):
        os.write(1, b'{"error": "interrupted before anything was done", "exit": 5}\n')
    os._exit(5)


def asks_json(arguments: list[str]) -> bool:
    """Whether errors are to be said as one JSON object too.  The command line may be one that cannot be understood,
    so the word decides.
    """
    return "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


if (
    __name__ == "__main__" or Path(sys.argv[0]).stem == "shardproof"
):  # this process is the command line, not somebody who imports this file
    with starting():
        import click
else:
    import click

VERBS = {
    "audit": (
        "formal.verbs.audit",
        "audit_command",
        "Is this strategy optimal? A proof, a better one, or the certified gap.",
    ),
    "capture": (
        "formal.verbs.capture",
        "capture_command",
        "Write down what a program computes, on one device or on ranks, for `equal`.",
    ),
    "check": ("verify.verbs.check", "check_command", "Check plans and certificates; trusts no solver."),
    "diff": ("formal.verbs.report", "diff_command", "Every term in which two plans of one problem differ, priced."),
    "doctor": ("backends.verbs.doctor", "doctor_command", "What is installed, and what is missing for which verb."),
    "equal": (
        "formal.verbs.equal",
        "equal_command",
        "Does a program on ranks compute what one device computes? A proof, or numbers that differ.",
    ),
    "explain": ("formal.verbs.explain", "explain_command", "What a plan decided, why, and what alternatives cost."),
    "export": (
        "backends.verbs.export",
        "export_command",
        "Write a checked plan for PyTorch, JAX, or as settings of Megatron-LM, torchtitan and others.",
    ),
    "fits": (
        "formal.verbs.fits",
        "fits_command",
        "Does a job fit into memory? A proof, and the least changes.",
    ),
    "import": ("models.verbs.describe", "import_command", "Read a model and write it as a JSON graph."),
    "machine": ("models.verbs.describe", "machine_command", "Show machine descriptions."),
    "plan": ("formal.verbs.plan", "plan_command", "Plan a model on a machine and prove the plan."),
    "place": (
        "formal.verbs.place",
        "place_command",
        "All placements of parallelism axes over a hierarchy; the best one for given reductions.",
    ),
    "reduce": (
        "formal.verbs.reduce",
        "reduce_command",
        "All reduction programs of a request, and the cheapest one with a proof.",
    ),
    "report": ("formal.verbs.report", "report_command", "A plan as one page of HTML to look at."),
    "rules": ("", "", "Prove, refute, generate, check and show graph substitutions."),
    "run": ("backends.verbs.run", "run_command", "Execute a plan on several ranks and compare with one process."),
    "schedule": (
        "formal.verbs.schedule",
        "schedule_command",
        "The shortest schedule of a pipeline, or of computation and communication, with a proof.",
    ),
    "sensitivity": ("formal.verbs.explain", "sensitivity_command", "How far each machine constant may move."),
    "solve": ("formal.verbs.solve", "solve_command", "Solve a selection problem with a certificate."),
    "sweep": ("formal.verbs.sweep", "sweep_command", "Many plans of one file: one table, one page, all plans."),
    "verify-job": (
        "backends.verbs.verify_job",
        "verify_job_command",
        "Compare what a planned PyTorch module sends with what its plan moves.",
    ),
}
"""Verb -> (module, command, one line of help): the help page loads none of the modules."""

PURPOSES = {
    "Plan a model": ("plan", "check", "explain", "report", "export", "run"),
    "Judge what there is": ("audit", "fits", "equal", "capture", "verify-job", "diff", "sensitivity"),
    "Many plans, machines, models": ("sweep", "machine", "import", "doctor"),
    "Parts alone": ("solve", "schedule", "place", "reduce", "rules"),
}
"""What the help page groups verbs by; every verb once."""


SUBVERBS = {"machine": {"calibrate": ("formal.verbs.calibrate", "calibrate_command")}}
"""Verb -> word -> (module, command): parts of a verb that live in another room than the verb itself."""


WORDS = {
    "rules": {
        "prove": ("formal.verbs.rewrites", "prove_command", "Judge every rule of a file: proved, refuted or vacuous."),
        "refute": ("formal.verbs.rewrites", "refute_command", "The rules of a file that fail, with counterexamples."),
        "generate": ("formal.verbs.rewrites", "generate_command", "Enumerate graphs and keep a proved basis of rules."),
        "derive": (
            "formal.verbs.rewrites",
            "derive_command",
            "Derive rules from a library by rewriting: a second proof.",
        ),
        "dtensor": (
            "formal.verbs.placements",
            "dtensor_command",
            "Which placements of DTensor are right, for all sizes.",
        ),
        "check": (
            "verify.verbs.rules",
            "rules_check_command",
            "Replay the proofs of a rule library; trusts no solver.",
        ),
        "show": ("formal.verbs.rules_show", "show_command", "Show a rule, its preconditions and its proof."),
    },
}
"""Verb -> word -> (module, command, one line of help): verbs whose words live in several rooms, each loaded when it
is called.
"""


def _loaded(module: str, name: str) -> click.Command:
    with starting():
        from shardproof.models.terminal.completion import completing

        command: click.Command = getattr(import_module(f"shardproof.{module}"), name)
    return completing(command)


class _Group(click.Group):
    """A group that names the nearest word when there is none of the name asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            from shardproof.models.text import did_you_mean

            words = self.list_commands(ctx)
            kind = "verb" if ctx.parent is None else f"word of {ctx.info_name!r}"
            raise click.UsageError(
                f"there is no {kind} {args[0][:100]!r}{did_you_mean(args[0], words)}; there are {', '.join(words)}", ctx
            )
        return super().resolve_command(ctx, args)


class _Words(_Group):
    """A verb whose words are loaded when they are called."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb, help=VERBS[verb][2])
        self.words = WORDS[verb]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.words)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.words:
            return None
        module, name, _ = self.words[cmd_name]
        return _loaded(module, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(word, row[2]) for word, row in sorted(self.words.items())])


class _Parts(_Group):
    """A group with more parts, each loaded when it is called."""

    def __init__(self, group: click.Group, parts: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(group.name, commands=group.commands, help=group.help)
        self.parts = parts

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self.parts})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.parts:
            return _loaded(*self.parts[cmd_name])
        return super().get_command(ctx, cmd_name)


class _Verbs(_Group):
    """Loads the module of a verb when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Verbs, none of them loaded; or the options of the group, as click does."""
        from shardproof.models.terminal.completion import verbs

        named = verbs(((name, row[2]) for name, row in sorted(VERBS.items())), incomplete)
        return named or click.Command.shell_complete(self, ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name in WORDS:
            return _Words(cmd_name)
        module, name, _ = VERBS[cmd_name]
        command = _loaded(module, name)
        if isinstance(command, click.Group) and cmd_name in SUBVERBS:
            return _Parts(command, SUBVERBS[cmd_name])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in PURPOSES.items():
            with formatter.section(title):
                formatter.write_dl([(verb, VERBS[verb][2]) for verb in verbs])


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shardproof")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Plan how a deep-learning program is split over a machine, and prove what is said about the plan."""
    from shardproof.front_door import FrontDoor
    from shardproof.models.terminal.console import BEGUN

    if isinstance(ctx.obj, float):  # who invokes the group has begun just now
        ctx.meta[BEGUN] = ctx.obj
    ctx.obj = FrontDoor()


def _report(message: str, code: int, as_json: bool, notes: Sequence[str] = ()) -> int:
    from shardproof.models.terminal.console import report_error

    return report_error(message, code, as_json, notes)


def run(arguments: list[str] | None = None, begun: float | None = None) -> int:
    """Run one command line and return its exit code (`models.terminal.console.Exit`).  `begun`: the moment
    (`time.monotonic`) from which time limits count, None for now.
    """
    begun = time.monotonic() if begun is None else begun
    with starting():
        from shardproof.models.terminal.console import Exit, say
        from shardproof.models.text import NoAnswer
        from shardproof.proofs.publishing.publisher import RefutedPlan, SelfCheckFailed

    as_json = asks_json(sys.argv[1:] if arguments is None else arguments)
    try:
        result: Any = cli.main(args=arguments, prog_name="shardproof", standalone_mode=False, obj=begun)
    except click.UsageError as error:
        if isinstance(
            error, getattr(click.exceptions, "NoArgsIsHelpError", ())
        ):  # nothing was asked: the help page is the answer
            say(*error.format_message().split("\n"), err=True)
            return Exit.USAGE
        code = _report(error.format_message(), Exit.USAGE, as_json)
        if error.ctx is not None:
            say(*error.ctx.get_usage().split("\n"), err=True)
        return code
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted; the last checked result, if any, is untouched", Exit.UNDECIDED, as_json)
    except click.ClickException as error:
        return _report(error.format_message(), Exit.BAD_INPUT, as_json)
    except NoAnswer as error:
        return _report(str(error), Exit.UNDECIDED, as_json)
    except SelfCheckFailed as error:
        return _report(str(error), Exit.INTERNAL, as_json)
    except RefutedPlan as error:
        return _report(str(error), Exit.REFUTED, as_json)
    except ValueError as error:
        if not type(error).__module__.startswith("shardproof."):
            raise
        return _report(str(error), Exit.BAD_INPUT, as_json, getattr(error, "__notes__", ()))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except OSError as error:
        return _report(f"{error.filename or 'file'}: {error.strerror or error}", Exit.BAD_INPUT, as_json)
    except MemoryError:
        if os.environ.get("SHARDPROOF_DEBUG"):
            raise
        return _report("out of memory; a smaller space (--space two-per-level) needs less", Exit.INTERNAL, as_json)
    return int(result) if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the command line.  An unexpected error is exit 6, with the traceback if SHARDPROOF_DEBUG is
    set.
    """
    try:
        code = run(begun=_BEGUN)
    except Exception as error:  # the last line of defence: anything that reaches here is a defect of ours
        if os.environ.get("SHARDPROOF_DEBUG"):
            raise
        code = _report(
            f"internal error, please report it: {type(error).__name__}: {error} (SHARDPROOF_DEBUG=1 shows where)",
            6,
            asks_json(sys.argv[1:]),
        )
    except KeyboardInterrupt:  # between a verb's end and this one's
        code = 5
    sys.exit(code)


if __name__ == "__main__":
    main()
