"""Verb `equal`: does the program that runs on ranks compute what one device computes?

Both are run once on small inputs, ranks under process groups that send nothing, and written down step by step.  Numbers
look for a difference; what they do not find is proved by normal forms, in the checker, and kept with `-o`.
Exit codes: 0 equal, 10 different, 5 undecided, 3 not readable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ...models.layout.placement import space
from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    AMOUNT,
    Count,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
)
from ...models.text import InputError
from ...proofs.publishing.publisher import Published, Publisher
from ..equality.job import Received, Tie, ask_tied, prove_tied
from ..equality.layouts import read_layouts
from ..equality.question import Difference, Question
from ..equality.request import (
    MOST_RANKS,
    ask,
    ask_alike,
    ask_captured,
    ask_planned,
    describe,
    exported_file,
    is_planned,
    look,
    offer_devices,
    rounding_json,
    rounding_words,
    words_of,
)
from ..equality.texts import ask_texts, is_text, text_ranks
from .capture import program_at
from .combinations import EQUAL
from .reduction_options import sizes


@dataclass(frozen=True)
class EqualOptions:
    """The command line of `equal`."""

    single: str
    distributed: str | None
    ranks: int | None
    grad: bool
    layouts: Path | None
    alike: str | None
    seed: int
    plan_file: Path | None
    excess: int | None
    output: Path | None
    as_json: bool

    @property
    def mesh(self) -> tuple[int, ...]:
        """Sizes of `--alike`; () without it."""
        return () if self.alike is None else sizes(self.alike, "--alike", "x")


@click.command("equal")
@click.argument("single")
@click.argument("distributed", required=False)
@click.option("--ranks", type=Count(1, MOST_RANKS), help="Ranks on which DISTRIBUTED runs; of a plan, its own.")
@click.option("--grad", is_flag=True, help="Compare gradients too, of all inputs and parameters that require one.")
@click.option(
    "--layouts",
    type=click.Path(path_type=Path),
    help="JSON: where tensors lie that values do not tell, and outputs that are parts of a sum or mean.",
)
@click.option(
    "--alike",
    metavar="SIZES",
    help="Ranks of a mesh of these sizes, such as 64x8, are alike: those at its corners run, and no others; of a plan"
    " with stages those of every stage.",
)
@click.option("--seed", type=Count(0, 1 << 31), default=0, show_default=True, help="Of the numbers that are drawn.")
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    help="Tie the proof to this plan: one file that says optimal, equal, and that ranks receive what is priced."
    " DISTRIBUTED is then the file that was exported of it, or left out.",
)
@click.option(
    "--excess", type=AMOUNT, help="With --plan: bytes that a rank may receive beyond those that the plan prices."
)
@output_option("-o", "--output", help="Write the proof (.spz).")
@force_option
@json_option
@click.pass_obj
@refuse_combinations(EQUAL)
@options_as(EqualOptions)
def equal_command(publisher: Publisher, given: EqualOptions) -> int:
    """Whether DISTRIBUTED (FILE.py:NAME, called with rank and ranks) computes on every rank what SINGLE (FILE.py:NAME)
    computes on one device.  Both return what is called and its inputs.  PyTorch or JAX; of JAX DISTRIBUTED is called
    with ranks, once: `shard_map` or `jit` with shardings.  DISTRIBUTED may be a plan (.spz), or the file
    that `export --to dtensor` made of it: SINGLE then returns the module that was planned, and example inputs.
    Both may be files that `capture` wrote (.spz), whose programs are read and not run.  Each may be a text: StableHLO
    (.mlir) or HLO (.hlo, .txt), DISTRIBUTED of all ranks, before or after XLA's partitioner.
    """
    offer_devices(given.ranks)
    with Watch("running both programs"):
        question, tie = _question(publisher, given)
    with Watch("comparing numbers"):
        found = look(question, given.seed)
    if found is not None:
        return _different(found, question, given.as_json)
    received = None if tie is None else tie.traffic(question.pair())
    if tie is not None and received is not None and received.beyond > tie.excess:
        with Watch("proving"):  # alone, for its answer: no file says "equal" of a job whose bytes are refuted
            _, alone = prove_tied(question, None, lambda data: publisher.publish(None, data))
        return _receives_more(received, question, tie, alone, given.as_json)
    with Watch("proving"):
        _, published = prove_tied(question, tie, lambda data: publisher.publish(given.output, data))
    proved = published.verdict is Verdict.PROVED and not question.doubt
    bound = question.rounding() if proved else None
    if given.as_json:
        more = {} if received is None else _received_json(received)
        emit(_document(question, published, proved) | {"rounding": rounding_json(bound)} | more)
        return Exit.DONE if proved else Exit.UNDECIDED
    for line in _lines(question):
        say(line)
    if proved:
        say(_proved_words(question))
        if tie is not None and received is not None:
            say(f"{published.kind.lower()}: plan {tie.found.identity[:12]}..", f"bytes: {received.words}")
        say(f"assumed: {', '.join(published.assumptions)}")
        if bound is not None:
            say(rounding_words(bound))
    else:
        say(f"undecided: {question.doubt or f'{published.reason}; numbers do not differ'}")
    if published.path is not None:
        say(f"wrote {published.path}")
    return Exit.DONE if proved else Exit.UNDECIDED


def _question(publisher: Publisher, given: EqualOptions) -> tuple[Question, Tie | None]:
    """The question, and what ties it to a plan."""
    said, single, distributed, ranks = read_layouts(given.layouts), given.single, given.distributed, given.ranks
    if given.plan_file is not None:
        job = None if distributed is None else Path(distributed)
        return ask_tied(program_at(single), given.plan_file, job, ranks, given.excess or 0, publisher)
    if distributed is None:
        raise click.UsageError("Missing argument 'DISTRIBUTED'.")
    if is_text(single) or is_text(distributed):
        if given.mesh:
            raise InputError("--alike: the text is of all ranks; leave --alike out")
        ranks = text_ranks(distributed, ranks)
        one, many = (s if is_text(s) or s.endswith((".spz", ".py")) else program_at(s) for s in (single, distributed))
        return ask_texts(one, many, ranks, given.grad, said, given.seed), None
    if given.mesh and single.endswith(".spz"):
        raise InputError("--alike: programs of all ranks are in the file; leave --alike out")
    if single.endswith(".spz"):
        if given.grad:
            raise InputError("--grad: gradients were written down, or not, by `capture --grad`")
        return ask_captured(Path(single), Path(distributed), ranks, said), None
    if is_planned(distributed):
        with exported_file(Path(distributed), publisher.export_text) as layout:
            return ask_planned(program_at(single), layout, distributed, ranks, given.grad, said, alike=given.mesh), None
    if given.mesh:
        return ask_alike(program_at(single), program_at(distributed), given.mesh, given.grad), None
    if ranks is None:
        raise click.UsageError("--ranks: on how many ranks does DISTRIBUTED run?")
    return ask(program_at(single), program_at(distributed), ranks, given.grad, said), None


def _different(found: Difference, question: Question, as_json: bool) -> int:
    where = f"{found.output} of rank {found.rank}" if found.output else ""
    if as_json:
        emit(
            {
                "verdict": "different",
                "ranks": question.many,
                "output": found.output,
                "rank": found.rank,
                "reason": found.reason,
                "line": found.line,
                "numbers": None if found.numbers is None else [repr(x) for x in found.numbers],
                **describe(question),
            }
        )
        return Exit.REFUTED
    for line in _lines(question):
        say(line)
    say(f"different: {where}{where and ' '}{found.reason}")
    if found.numbers is not None:
        say(f"  there {found.numbers[0]!r}, on one device {found.numbers[1]!r}")
    if found.line:
        say(f"  at {found.line}")
    return Exit.REFUTED


def _proved_words(question: Question) -> str:
    return f"equal: {question.outputs} outputs on {question.many} ranks, proved over the real numbers"


def _document(question: Question, published: Published, proved: bool) -> dict[str, object]:
    return {
        "verdict": "equal" if proved else "undecided",
        "ranks": question.many,
        "reason": question.doubt or published.reason,
        **describe(question),
        "assumptions": list(published.assumptions),
        "identity": published.identity,
        "certificate": None if published.path is None else str(published.path),
    }


def _receives_more(received: Received, question: Question, tie: Tie, alone: Published, as_json: bool) -> int:
    """Says both answers: what the job computes, and that it receives more than is priced."""
    equal = alone.verdict is Verdict.PROVED and not question.doubt
    reason = f"{received.words}: {received.beyond:,} more than priced"
    if as_json:
        emit(
            {
                "verdict": "more bytes",
                "computes": "equal" if equal else "undecided",
                "ranks": question.many,
                "reason": reason,
                **describe(question),
                **_received_json(received),
            }
        )
        return Exit.REFUTED
    for line in _lines(question):
        say(line)
    say(_proved_words(question) if equal else f"undecided: {question.doubt or alone.reason}; numbers do not differ")
    spoken = "" if space(tie.plan.space).vocabulary else "; `plan --vocabulary dtensor` plans what DTensor can say"
    say(
        f"bytes: refuted: {reason}; nothing is written",
        f"`verify-job` says where; --excess {received.beyond} allows it{spoken}",
    )
    return Exit.REFUTED


def _received_json(received: Received) -> dict[str, object]:
    return {"received": received.most, "priced": received.priced, "by_operator": dict(received.bytes)}


def _lines(question: Question) -> list[str]:
    """What ranks are given and make, one line for each tensor of rank 0 and how many others are like it."""
    found = list[str]()
    for title, rows in (("given", question.given[0]), ("makes", dict(question.results[0]))):
        names = {s.number: s.name for s in question.ranks[0].program.sources}
        for key, what in list(rows.items())[:24]:
            name = names.get(key, str(key)) if isinstance(key, int) else key
            found.append(f"  {title:6} {name}: {words_of(question, what, title == 'makes')} (rank 0)")
    return found
