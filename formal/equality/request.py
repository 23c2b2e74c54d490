"""Makes a question of equality of two programs of a user, and says in words where tensors lie."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isinf, prod
from pathlib import Path
from types import ModuleType

from ...models.equality.captured import Captured, Unreadable
from ...models.equality.pair import Given, Known, Part
from ...models.equality.program import KEPT
from ...models.equality.schedule import Race, Stuck, stuck_messages
from ...models.problem.claims import Verdict
from ...models.sources.building.python_file import load_file
from ...models.sources.jax.importer import is_jax
from ...models.text import InputError
from ...proofs.container.archive import read_container
from ...proofs.container.canonical import ContainerError
from ...proofs.equality.captured import decode_captured
from ...proofs.equality.file import write_equality
from ...proofs.publishing.publisher import Published
from .alike import AlikeQuestion, alike_question, corner_ranks
from .flat import with_flat_inputs
from .fused import with_parts
from .givens import ProgramWithSources, Unmatched
from .layouts import Layouts, all_reduce_outputs
from .numbers import Numbers, run_ranks
from .question import Difference, Question, misread
from .rounding import ASSUMED as ROUNDED_SO
from .rounding import Bound
from .shapes import require_runs
from .varied import in_doubles

MOST_RANKS = 512
"""Ranks that one process runs, one after another."""
MOST_ALIKE = 1 << 14
"""Ranks of a mesh of which the corners run: what a certificate may be about."""


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
    with module_of(export(path, "dtensor"), path.stem) as layout:
        yield layout


@contextmanager
def module_of(text: str, stem: str) -> Iterator[ModuleType]:
    """The module of the text of an exported file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"layout_of_{stem}.py"
        file.write_text(text, encoding="utf-8")
        yield load_file(file)


def ask_planned(
    model: Callable[[], object],
    layout: ModuleType,
    place: str,
    ranks: int | None,
    gradients: bool,
    said: Layouts,
    whole: bool = True,
    alike: tuple[int, ...] = (),
) -> Question:
    """A model beside the job that an exported file makes of it: the plan's step of training where it has one, a forward
    pass where it has none, or a forward pass and all gradients.  `ranks`: None for those of the plan.  `whole`: every
    rank gathers the results of a forward pass; else they stay where the plan has them.  Raises `InputError` also for
    another number of ranks than the plan's.
    """
    try:
        from ...models.sources.distributed.planned import exchanging
        from ...models.sources.distributed.staged import exported_job
    except ModuleNotFoundError as error:
        raise InputError(f"equal runs PyTorch programs; install the extra [torch] ({error})") from error
    job = exported_job(model, layout, place)
    if ranks not in (None, job.ranks):
        raise InputError(f"--ranks {ranks}: the plan of {place} is for {job.ranks}; leave --ranks out")
    if alike and prod(alike) * job.stages != job.ranks:
        of = f"{job.stages} stages of {job.ranks // job.stages}" if job.stages > 1 else str(job.ranks)
        raise InputError(f"--alike {'x'.join(map(str, alike))}: the plan of {place} is for {of} ranks")
    if not alike and job.ranks > MOST_RANKS:
        raise InputError(
            f"{place} is for {job.ranks} ranks; at most {MOST_RANKS} run in one process: give --alike, the sizes of the"
            " mesh of its ranks, of those of one stage where it has stages"
        )
    step = job.trains and not gradients
    with exchanging():
        if alike:
            make = (lambda: job.one_device(step)), (lambda rank, many: job.rank(step))
            return ask_alike(*make, alike, gradients, job.stages)
        return ask(lambda: job.one_device(step), lambda rank, many: job.rank(step, whole), job.ranks, gradients, said)


def ask(
    single: Callable[..., object], distributed: Callable[..., object], ranks: int, gradients: bool, said: Layouts
) -> Question:
    """Both programs, written down: `single()` once, `distributed(rank, ranks)` as every rank; of JAX `distributed` as
    one program of all.  Raises `InputError` for what cannot be read, and for tensors of which nothing says where they
    lie.
    """
    try:
        one, many = _captured(single, None, gradients)[0], _captured(distributed, ranks, gradients)
    except Unreadable as error:
        raise InputError(str(error)) from error
    return question_of(one, many, said)


def ask_alike(
    single: Callable[..., object],
    distributed: Callable[..., object],
    sizes: tuple[int, ...],
    gradients: bool,
    stages: int = 1,
) -> Question:
    """Both programs, of ranks of a mesh of these sizes, or of one for each stage, only those of corners (`alike`).
    Raises `InputError` also where these are not alike.
    """
    many = prod(sizes) * stages
    if many > MOST_ALIKE:
        raise InputError(f"--alike: {many} ranks; at most {MOST_ALIKE}")
    if is_jax(single) or is_jax(distributed):
        raise InputError("--alike: of JAX one program is read for all ranks; leave --alike out")
    try:
        one = _captured(single, None, gradients)[0]
        corners = _captured(distributed, many, gradients, corner_ranks(sizes, stages))
    except Unreadable as error:
        raise InputError(str(error)) from error
    compare_with_run(one, corners)
    try:
        return alike_question(one, corners, sizes, stages)
    except Unmatched as error:
        raise InputError(str(error)) from error


def capture_one_device(make: Callable[..., object]) -> Captured:
    """A program of one device.  Raises `InputError`."""
    try:
        return _captured(make, None, False)[0]
    except Unreadable as error:
        raise InputError(str(error)) from error


def ask_question(single: ProgramWithSources, many: Sequence[Captured], said: Layouts) -> Question:
    """The question of programs that were compared with their runs.  Raises `InputError`."""
    ranks = [ProgramWithSources(c.program, c.arrays, c.inputs, c.outputs) for c in many]
    return _question(single, ranks, said)


def _captured(
    make: Callable[..., object], ranks: int | None, gradients: bool, some: Sequence[int] | None = None
) -> list[Captured]:
    """What every rank does, or `some`, or the one device where `ranks` is None."""
    if is_jax(make):
        from ...models.sources.partitioned.capture import capture_one, capture_ranks

        if gradients:
            raise InputError("--grad: a JAX program returns the gradients that are to be compared (jax.value_and_grad)")
        return [capture_one(make)] if ranks is None else capture_ranks(make, ranks)
    try:
        from ...models.sources.distributed.capture import capture
    except ModuleNotFoundError as error:
        raise InputError(
            f"it is no JAX program, and PyTorch is not installed, whose programs equal and capture run: install the"
            f" extra [torch] ({error})"
        ) from error
    if ranks is None:
        return [capture(make, None, 1, gradients)]
    return [capture(make, rank, ranks, gradients) for rank in (range(ranks) if some is None else some)]


def offer_devices(ranks: int | None) -> None:
    """So many host devices for JAX, which is told before it is imported; nothing where it was."""
    if ranks is not None and "jax" not in sys.modules:
        devices = f"--xla_force_host_platform_device_count={ranks}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}".strip()
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's warnings about partitioners are no news


def capture_programs(make: Callable[..., object], ranks: int | None, gradients: bool) -> list[Captured]:
    """A program of one device (`ranks` None), or of every rank, compared with the run.  Raises `InputError`, also for
    what goes wrong in time: a file says nothing of that.
    """
    try:
        found = _captured(make, ranks, gradients)
    except Unreadable as error:
        raise InputError(str(error)) from error
    for rank, held in enumerate(found):
        if held.race is not None:
            line = f", {held.race.line}" if held.race.line else ""
            raise InputError(f"rank {rank} {held.race.reason}{line}: `equal` on the programs says more")
    if (stuck := stuck_messages([held.events for held in found])) is not None:
        raise InputError(f"{stuck}: `equal` on the programs says more")
    one = found[0] if ranks is None else None
    compare_with_run(one, [] if ranks is None else found)
    return found


def ask_captured(single: Path, distributed: Path, ranks: int | None, said: Layouts) -> Question:
    """The question of two files that `capture` wrote.  Raises `InputError`, naming the file."""
    files = []
    for path, device in ((single, True), (distributed, False)):
        if path.suffix != ".spz":
            raise InputError(f"{path}: SINGLE is a file of `capture`, so this is to be one too (.spz)")
        try:
            found = decode_captured(read_container(path))
        except ContainerError as error:
            raise InputError(f"{path}: {error}; SINGLE and DISTRIBUTED are files of `capture`") from error
        if found.device is not device:
            raise InputError(
                f"{path}: was written {'without' if found.device else 'with'} --ranks; SINGLE is of one device, the"
                " other of ranks"
            )
        for rank, held in enumerate(found.programs):
            require_runs(held.program, str(path) if device else f"{path}, rank {rank}")
        files.append(found.programs)
    if ranks not in (None, len(files[1])):
        raise InputError(f"--ranks {ranks}: {distributed} has {len(files[1])}; leave --ranks out")
    one, *many = (ProgramWithSources(p.program, p.arrays, p.inputs, p.outputs) for programs in files for p in programs)
    question = _question(one, many, said)
    question.read = True
    return question


def question_of(one: Captured, many: Sequence[Captured], said: Layouts) -> Question:
    """The question of programs that were written down.  Raises `InputError` where one was written down otherwise than
    it ran, and for tensors of which nothing says where they lie.
    """
    compare_with_run(one, many)
    single, *ranks = (ProgramWithSources(c.program, c.arrays, c.inputs, c.outputs) for c in (one, *many))
    races = [(rank, c.race) for rank, c in enumerate(many) if c.race is not None]
    return _question(single, ranks, said, races, stuck_messages([c.events for c in many]))


def _question(
    one: ProgramWithSources,
    many: Sequence[ProgramWithSources],
    said: Layouts,
    races: Sequence[tuple[int, Race]] = (),
    stuck: Stuck | None = None,
) -> Question:
    partial = {name: layout.partial for name, layout in said.outputs.items() if layout.partial is not None}
    programs = []
    for rank, held in enumerate(many):
        names = dict(held.program.outputs)
        for name in said.outputs:
            if name not in names:
                raise InputError(f"--layouts: rank {rank} has no output {name!r}; it has {', '.join(names)}")
        reduced = all_reduce_outputs(held.program, partial, len(many))
        programs.append(ProgramWithSources(reduced, held.arrays, held.inputs, held.outputs))
    try:
        flat = with_flat_inputs(one, programs, said.inputs)
        return Question(flat, with_parts(flat, programs, said.inputs), said, races, stuck)
    except Unmatched as error:
        raise InputError(str(error)) from error


def compare_with_run(one: Captured | None, many: Sequence[Captured]) -> None:
    """`InputError` where a program was written down otherwise than it ran."""
    for who, held, received in _received(one, many):
        try:
            name = misread(ProgramWithSources(held.program, held.arrays), received, held.results)
        except IndexError as error:
            raise InputError(f"{who}: reads outside a tensor on the inputs given: {error}") from error
        if name:
            raise InputError(f"{who}: the steps that were written down give another {name!r} than the run itself")


def _received(one: Captured | None, many: Sequence[Captured]) -> Iterator[tuple[str, Captured, Numbers]]:
    """Every program with what it receives: what it did in a run of its own, or does among the others."""
    if one is not None:
        yield "SINGLE", one, one.received
    sent: Sequence[Numbers] | None = None
    for rank, held in enumerate(many):
        taken = {n for s in held.program.steps if s.operator in KEPT for n in s.makes}
        if held.received or not taken:
            yield f"rank {rank}", held, held.received
            continue
        if sent is None:
            try:
                sent = run_ranks([m.program for m in many], [in_doubles(m.arrays) for m in many])
            except Stuck as stuck:
                raise InputError(f"the program that was written down never ends: {stuck}") from stuck
        yield f"rank {rank}", held, {n: sent[rank][n] for n in taken}


def look(question: Question, seed: int) -> Difference | None:
    """The first difference that numbers show, or an output that is no part of one; None if there is none."""
    try:
        return question.differs(seed)
    except Unmatched as error:
        return Difference("", None, str(error))
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        if not question.read or isinstance(error, InputError):
            raise
        raise InputError(f"a step of the programs that were read cannot be run: {error}") from error


def prove(question: Question, publish: Callable[[bytes], Published]) -> tuple[bytes, Published]:
    """The proof, and what the checker says of it, behind `look`: of ranks of a mesh at once, where that is seen; else
    of one after another.
    """
    if (mesh := question.mesh_pair()) is not None:
        data = write_equality(mesh)
        try:
            published = publish(data)
            if published.verdict is Verdict.PROVED or isinstance(question, AlikeQuestion):
                return data, published
        except ContainerError:  # more work than there is: ranks are judged one after another
            if isinstance(question, AlikeQuestion):
                raise
    data = write_equality(question.pair())
    return data, publish(data)


def describe(question: Question) -> dict[str, list[dict[str, object]]]:
    """What ranks are given, and what they make: rank, tensor, and what it is in words."""
    rows = list[dict[str, object]]()
    for rank, held, given in zip(question.numbers, question.ranks, question.given, strict=True):
        for source in held.program.sources:
            if (what := given.get(source.number)) is not None:
                rows.append({"rank": rank, "tensor": source.name, "is": words_of(question, what)})
    outputs = [
        {"rank": rank, "tensor": name, "is": words_of(question, part, True)}
        for rank, results in zip(question.numbers, question.results, strict=True)
        for name, part in results
    ]
    return {"inputs": rows, "outputs": outputs}


def rounding_words(bound: Bound) -> str:
    """How far rounding alone moves outputs apart, as people say it.

    >>> rounding_words(Bound("output", 1, 3.1e-5, 2.4e-7, "float32"))
    'equal up to rounding: measured 2.4e-07, in the worst case 3.1e-05 (float32, output of rank 1, on the inputs given)'
    """
    where = f"{bound.precision}, {bound.output} of rank {bound.rank}, on the inputs given"
    if isinf(bound.bound):
        return f"no bound of rounding is known ({where}), measured {bound.measured:.2g}"
    return f"equal up to rounding: measured {bound.measured:.2g}, in the worst case {bound.bound:.2g} ({where})"


def rounding_json(bound: Bound | None) -> dict[str, object] | None:
    """The same, and what it rests on; None where nothing was computed."""
    if bound is None:
        return None
    return {
        "output": bound.output,
        "rank": bound.rank,
        "bound": None if isinf(bound.bound) else repr(bound.bound),
        "measured": repr(bound.measured),
        "precision": bound.precision,
        "assumptions": list(ROUNDED_SO),
    }


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
