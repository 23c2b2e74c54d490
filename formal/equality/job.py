"""Ties a plan to the job that runs it: what ranks of the job receive beside what the plan prices, and one file of both.

The job is the exported file's, as `equal` runs it.  Bytes are those of the collectives that were written down, with the
formulas of `models.cost`: of n elements over g ranks an all-reduce brings a rank 2 (g - 1) parts of n / g, rounded up,
the others (g - 1) parts.  The checker counts again, on its own (`verify.equality.job`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from ...models.equality.pair import Pair
from ...models.equality.program import RankProgram, Step
from ...models.files.input import regular
from ...models.program.tensor import ELEMENT_BYTES
from ...models.text import InputError
from ...proofs.equality.file import write_equality
from ...proofs.equality.job import MOST_EXCESS, MOST_TEXT, write_job
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.publisher import Opened, Published, Publisher
from .layouts import Layouts, layouts_of, read_layouts
from .question import Question
from .request import MOST_RANKS, ask, ask_alike, ask_planned, exported_file, module_of, prove
from .texts import ask_texts, is_text


@dataclass(frozen=True)
class Received:
    """Bytes into the fullest rank by operator; bytes that the plan prices; whether the job takes a step of training."""

    bytes: tuple[tuple[str, int], ...]
    priced: int
    trains: bool

    @property
    def most(self) -> int:
        """Bytes into the fullest rank."""
        return sum(n for _, n in self.bytes)

    @property
    def beyond(self) -> int:
        """Bytes that are received and not priced."""
        return max(0, self.most - self.priced)

    @property
    def words(self) -> str:
        """In a line of text."""
        kinds = ", ".join(f"{name} {n:,}" for name, n in self.bytes)
        what = "step" if self.trains else "forward pass"
        return (
            f"a rank receives {self.most:,} bytes in a {what}, {self.priced:,} are priced ({kinds or 'no collective'})"
        )


@dataclass(frozen=True)
class Tie:
    """A checked plan, the text of the file that its job runs, and bytes that may be received beyond those priced."""

    found: Opened
    text: str
    excess: int

    @property
    def plan(self) -> Plan:
        """The plan.  Raises `InputError` for plans whose jobs are no program of all ranks alike."""
        plan = self.found.held
        if not isinstance(plan, Plan) or plan.joint is not None or self.found.job is not None:
            raise InputError(
                f"{self.found.place}: --plan takes a plan of placements alone, without stages, submeshes, streams and"
                " rewriting: plan with --without stages, submeshes, overlap, rewrites, or without what asks for them"
            )
        return plan

    def traffic(self, pair: Pair) -> Received:
        """What ranks receive beside what is priced."""
        return count_received(self.plan, pair.ranks)

    def too_much(self, pair: Pair) -> str:
        """Why ranks receive more than is priced and allowed; empty if they do not."""
        received = self.traffic(pair)
        return f"{received.words}: {received.beyond:,} more than priced" if received.beyond > self.excess else ""

    def data(self, pair: Pair) -> bytes:
        """Bytes of the file that holds the plan, the proof about its job, and the job's file."""
        return write_job(self.found.data, write_equality(pair), self.text, bool(self.plan.graph.state), self.excess)


def ask_tied(
    model: Callable[[], object], plan: Path, file: Path | None, ranks: int | None, excess: int, publisher: Publisher
) -> tuple[Question, Tie]:
    """The question of a model and the job of a plan.  `file`: what was exported of the plan; None exports it.  Raises
    `InputError` also for a file of another plan.
    """
    found = publisher.open(plan)
    if file is not None and file.suffix != ".py":
        raise InputError(
            f"{file}: beside --plan stands the file that `export --to dtensor` made of the plan, or nothing"
        )
    tie = Tie(found, "", excess)
    shown = str(plan if file is None else file)
    if tie.plan.machine.devices > MOST_RANKS:
        raise InputError(f"{plan} is for {tie.plan.machine.devices} ranks; at most {MOST_RANKS} run in one process")
    text = publisher.export_text(plan, "dtensor") if file is None else _text(file)
    with module_of(text, plan.stem) as layout:
        made = getattr(layout, "PLAN", {})
        named = made.get("identity") if isinstance(made, dict) else None
        if named != found.identity:
            raise InputError(
                f"{shown}: was made of plan {str(named)[:12]}.., not of {plan}, {found.identity[:12]}..: export it anew"
            )
        return ask_planned(model, layout, shown, ranks, False, Layouts({}, {}), whole=False), replace(tie, text=text)


@dataclass(frozen=True)
class Given:
    """What Python gave beside two programs (`shardproof.equal`)."""

    ranks: int | None
    grad: bool
    layouts: Path | str | Mapping[str, object] | None
    alike: tuple[int, ...]
    plan: Path | str | None
    excess: int


def ask_any(
    single: Callable[[], object] | Path | str,
    distributed: Callable[[int, int], object] | Path | str | None,
    given: Given,
    publisher: Publisher,
) -> tuple[Question, Tie | None]:
    """The question of whatever Python gave, and what ties it to a plan.  Raises `InputError`."""
    ranks, grad, layouts, alike = given.ranks, given.grad, given.layouts, given.alike
    if given.plan is not None:
        more = grad or layouts is not None or alike or not 0 <= given.excess <= MOST_EXCESS
        if not callable(single) or callable(distributed) or more:
            raise InputError(
                "plan=.. goes with a function and a file that was exported of it, without grad, layouts and alike;"
                " excess >= 0"
            )
        job = None if distributed is None else Path(distributed)
        return ask_tied(single, Path(given.plan), job, ranks, given.excess, publisher)
    if isinstance(layouts, Mapping):
        said = layouts_of(dict(layouts), "layouts")
    else:
        said = read_layouts(None if layouts is None else Path(layouts))
    if alike and layouts is not None:
        raise InputError("ranks of a mesh are alike where values tell where tensors lie: leave layouts out")
    if any(type(n) is not int or n < 1 for n in alike):
        raise InputError(f"ranks={alike!r}: write sizes of a mesh, such as (64, 8)")
    if distributed is not None and (is_text(single) or is_text(distributed)):
        if alike:
            raise InputError("a text is of all ranks: write ranks as one number, or leave it out")
        return ask_texts(single, distributed, ranks, grad, said), None
    if isinstance(single, Path | str):
        raise InputError(f"single={single!r}: a function, or the path of a text (.mlir, .hlo, .txt)")
    if alike and callable(distributed):
        return ask_alike(single, distributed, alike, grad), None
    if isinstance(distributed, Path | str) and (ranks is None or 1 <= ranks <= MOST_RANKS):
        with exported_file(Path(distributed), publisher.export_text) as layout:
            return ask_planned(single, layout, str(distributed), ranks, grad, said, alike=alike), None
    if distributed is None or isinstance(distributed, Path | str) or ranks is None or not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"ranks={ranks!r}: write a number from 1 to {MOST_RANKS}")
    return ask(single, distributed, ranks, grad, said), None


def prove_tied(question: Question, tie: Tie | None, publish: Callable[[bytes], Published]) -> tuple[bytes, Published]:
    """The proof, alone or in one file with its plan, and what the checker says of it."""
    if tie is None:
        return prove(question, publish)
    data = tie.data(question.pair())
    return data, publish(data)


def _text(file: Path) -> str:
    try:
        return regular(file).read_bytes()[: MOST_TEXT + 1].decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is no text: {error}") from error


def count_received(plan: Plan, ranks: Sequence[RankProgram]) -> Received:
    """What the ranks of a job receive.  Raises `InputError` for element types whose size is not known."""
    counts = []
    for rank, program in enumerate(ranks):
        found = Counter[str]()
        for step in program.steps:
            found[step.operator] += _into(program, rank, step)
        counts.append(+found)
    fullest = max(counts, key=lambda found: found.total())
    priced = sum(plan.graph.tensor(m.tensor).element_bytes * m.loads[-1] for m in plan.communication)
    return Received(tuple(sorted(fullest.items())), priced, bool(plan.graph.state))


def _into(program: RankProgram, rank: int, step: Step) -> int:
    words = dict(step.words)
    group = words.get("ranks")
    if step.operator == "recv":
        return _bytes(program, step.makes[0], 1)
    if not isinstance(group, tuple) or step.operator == "barrier":
        return 0
    ways, others = len(group), len(group) - 1
    match step.operator:
        case "all_reduce":
            return 2 * others * _bytes(program, step.reads[0], ways)
        case "reduce_scatter":
            return others * _bytes(program, step.reads[0], ways)
        case "all_gather":
            return others * _bytes(program, step.reads[0], 1)
        case "all_to_all":
            taken, rows = program.tensors[step.makes[0]], words["receive"]
            kept = rows[group.index(rank)] if isinstance(rows, tuple) else 0
            whole = _bytes(program, step.makes[0], 1)
            return whole - whole // max(1, taken.shape[0]) * kept
        case "broadcast":
            return 0 if words["source"] == rank else _bytes(program, step.reads[0], 1)
        case _:
            return _bytes(program, step.reads[0], 1) if others else 0


def _bytes(program: RankProgram, number: int, ways: int) -> int:
    """Bytes of one of so many parts of a tensor."""
    tensor = program.tensors[number]
    if tensor.dtype not in ELEMENT_BYTES:
        raise InputError(f"a collective of {tensor.dtype}: how many bytes that takes is not known here")
    return -(-prod(tensor.shape) // ways) * ELEMENT_BYTES[tensor.dtype]
