"""Makes a question of equality of two programs of a user, and says in words where tensors lie."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ...models.equality.pair import Given, Known, Part
from ...models.equality.schedule import stuck_messages
from ...models.sources.building.python_file import load_file
from ...models.text import InputError
from .givens import ProgramWithSources, Unmatched
from .layouts import Layouts, all_reduce_outputs
from .question import Difference, Question, misread

MOST_RANKS = 512
"""Ranks that one process runs, one after another."""


def is_planned(distributed: str) -> bool:
    """Whether a word of the command line is a plan of ours or its exported file, and no FILE.py:NAME.

    >>> is_planned("plan.spz"), is_planned("layout.py"), is_planned("job.py:parallel")
    (True, True, False)
    """
    return distributed.endswith((".spz", ".py"))


@contextmanager
def exported_file(path: Path, export: Callable[[Path, str], str]) -> Iterator[ModuleType]:
    """The module of an exported file, or of the file that `export` makes of a plan."""
    if path.suffix == ".py":
        yield load_file(path)
        return
    text = export(path, "dtensor")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"layout_of_{path.stem}.py"
        file.write_text(text, encoding="utf-8")
        yield load_file(file)


def ask_planned(
    model: Callable[[], object], layout: ModuleType, place: str, ranks: int | None, gradients: bool, said: Layouts
) -> Question:
    """A model beside the job that an exported file makes of it: the plan's step of training where it has one, a forward
    pass where it has none, or a forward pass and all gradients.  `ranks`: None for those of the plan.  Raises
    `InputError` also for another number than that.
    """
    try:
        from ...models.sources.distributed.planned import planned_job
    except ModuleNotFoundError as error:
        raise InputError(f"equal runs PyTorch programs; install the extra [torch] ({error})") from error
    job = planned_job(model, layout, place)
    if ranks not in (None, job.ranks):
        raise InputError(f"--ranks {ranks}: the plan of {place} is for {job.ranks}; leave --ranks out")
    if job.ranks > MOST_RANKS:
        raise InputError(f"{place} is for {job.ranks} ranks; at most {MOST_RANKS} run in one process")
    step = job.trains and not gradients
    return ask(lambda: job.one_device(step), lambda rank, many: job.rank(step), job.ranks, gradients, said)


def ask(
    single: Callable[..., object], distributed: Callable[..., object], ranks: int, gradients: bool, said: Layouts
) -> Question:
    """Both programs, written down: `single()` once, `distributed(rank, ranks)` as every rank.  Raises `InputError` for
    what cannot be read, and for tensors of which nothing says where they lie.
    """
    try:
        from ...models.sources.distributed.capture import Unreadable, capture
    except ModuleNotFoundError as error:
        raise InputError(f"equal runs PyTorch programs; install the extra [torch] ({error})") from error
    try:
        one = capture(single, None, 1, gradients)
        many = [capture(distributed, rank, ranks, gradients) for rank in range(ranks)]
    except Unreadable as error:
        raise InputError(str(error)) from error
    for who, held in [("SINGLE", one), *((f"rank {r}", m) for r, m in enumerate(many))]:
        if name := misread(ProgramWithSources(held.program, held.arrays), held.received, held.results):
            raise InputError(f"{who}: the steps that were written down give another {name!r} than the run itself")
    partial = {name: layout.partial for name, layout in said.outputs.items() if layout.partial is not None}
    programs = []
    for rank, held in enumerate(many):
        names = dict(held.program.outputs)
        for name in said.outputs:
            if name not in names:
                raise InputError(f"--layouts: rank {rank} has no output {name!r}; it has {', '.join(names)}")
        programs.append(ProgramWithSources(all_reduce_outputs(held.program, partial, ranks), held.arrays))
    try:
        races = [(rank, held.race) for rank, held in enumerate(many) if held.race is not None]
        stuck = stuck_messages([held.events for held in many])
        return Question(ProgramWithSources(one.program, one.arrays), programs, said, races, stuck)
    except Unmatched as error:
        raise InputError(str(error)) from error


def look(question: Question, seed: int) -> Difference | None:
    """The first difference that numbers show, or an output that is no part of one; None if there is none."""
    try:
        return question.differs(seed)
    except Unmatched as error:
        return Difference("", None, str(error))


def describe(question: Question) -> dict[str, list[dict[str, object]]]:
    """What ranks are given, and what they make: rank, tensor, and what it is in words."""
    rows = list[dict[str, object]]()
    for rank, (held, given) in enumerate(zip(question.ranks, question.given, strict=True)):
        for source in held.program.sources:
            if (what := given.get(source.number)) is not None:
                rows.append({"rank": rank, "tensor": source.name, "is": words_of(question, what)})
    outputs = [
        {"rank": rank, "tensor": name, "is": words_of(question, part, True)}
        for rank, results in enumerate(question.results)
        for name, part in results
    ]
    return {"inputs": rows, "outputs": outputs}


def words_of(question: Question, given: Given, output: bool = False) -> str:
    """A part or a constant as people say it."""
    if isinstance(given, Known):
        return f"constant {given.number}" if given.number is not None else "a constant of its own"
    return part_words(given, question.shape(given.of, output))


def part_words(part: Part, shape: tuple[int, ...]) -> str:
    """A part as people say it.

    >>> part_words(Part("w", (((0, 4, 4),), ((0, 0, 3),))), (8, 3))
    'w, 4:8 of dimension 0'
    """
    cut = [
        f"{', '.join(f'{there}:{there + many}' for _, there, many in runs)} of dimension {dim}"
        for dim, (runs, n) in enumerate(zip(part.runs, shape, strict=True))
        if runs != ((0, 0, n),)
    ]
    return f"{part.of}, {'; '.join(cut)}" if cut else f"{part.of}, whole"
