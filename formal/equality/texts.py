"""Makes a question of equality where SINGLE, or DISTRIBUTED, or both, are texts of programs: StableHLO or HLO.

A text has no numbers of its inputs and no names.  Numbers are those of the other side where it is a program; of two
texts they are drawn.  Inputs and outputs are matched by where they stand: the k-th of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...models.equality.captured import Captured, Stated, Unreadable
from ...models.sources.jax.importer import is_jax
from ...models.text import InputError
from ...proofs.container.archive import read_container
from ...proofs.container.canonical import ContainerError
from ...proofs.equality.captured import decode_captured
from .givens import ProgramWithSources
from .layouts import Layouts
from .numbers import Array
from .question import Question
from .request import MOST_RANKS, ask_question, capture_one_device, compare_with_run, offer_devices

Make = Callable[..., object]
Names = tuple[list[str], list[str]]
MOST_DRAWN = (64, 16, 8, 4, 2, 1)
"""Below which whole numbers are drawn, the first that the one device is defined on: rows of a table may be few."""
SUFFIXES = (".mlir", ".hlo", ".txt")


def is_text(word: object) -> bool:
    """Whether a side is the text of a program, by its name.

    >>> is_text("step.mlir"), is_text("job.py:step")
    (True, False)
    """
    return isinstance(word, str | Path) and str(word).endswith(SUFFIXES)


@dataclass(frozen=True, eq=False)
class _Side:
    """Programs of one side, and what is said of the other by them: whole inputs, and names."""

    single: ProgramWithSources
    captured: Captured | None
    wholes: list[Array]
    names: Names


def ask_texts(
    single: Make | Path | str,
    distributed: Make | Path | str,
    ranks: int | None,
    gradients: bool,
    said: Layouts,
    seed: int = 0,
) -> Question:
    """The question of two sides of which one at least is a text, the other one too, a program, or (SINGLE) a file of
    `capture`; `ranks`: None for those of the text.  Raises `InputError`.
    """
    if gradients:
        raise InputError("--grad: a text returns the gradients that are to be compared, or has none")
    many = text_ranks(distributed, ranks)
    try:
        if is_text(distributed):
            return _question(_single(single, seed), Path(str(distributed)), many, said)
        return _question_of_program(Path(str(single)), _program(distributed), many, said)
    except Unreadable as error:
        raise InputError(str(error)) from error


def text_ranks(distributed: object, ranks: int | None) -> int:
    """On how many ranks DISTRIBUTED runs, by its text or by --ranks; JAX is offered so many devices, before it is
    imported.  Raises `InputError`.
    """
    told = None
    if is_text(distributed):
        from ...models.sources.partitioned.texts import load_text, ranks_said

        try:
            told = ranks_said(load_text(Path(str(distributed))))
        except Unreadable as error:
            raise InputError(str(error)) from error
        if ranks not in (None, told) and told is not None:
            raise InputError(f"--ranks {ranks}: {distributed} is for {told} devices; leave --ranks out")
    many = told or ranks
    if many is None:
        raise InputError(f"--ranks: {distributed} does not say on how many devices it runs")
    if not 1 <= many <= MOST_RANKS:
        raise InputError(f"{distributed} is for {many} ranks; at most {MOST_RANKS} run in one process")
    offer_devices(many)
    return many


def _program(distributed: Make | Path | str) -> Make:
    """DISTRIBUTED beside a text of the one device: a JAX program, which has numbers of whole inputs."""
    if callable(distributed) and is_jax(distributed):
        return distributed
    what = "ranks of a PyTorch program have parts of them only" if callable(distributed) else f"{distributed} has none"
    raise InputError(
        f"SINGLE is a text, which says no numbers of its inputs, and {what}: DISTRIBUTED is to be a text (.mlir, .hlo,"
        " .txt) or a JAX program (FILE.py:NAME)"
    )


def _single(single: Make | Path | str, seed: int) -> _Side:
    """The one device, beside a text of ranks."""
    if is_text(single):
        return _drawn(Path(str(single)), seed)
    if not callable(single):
        if not str(single).endswith(".spz"):
            raise InputError(f"{single}: SINGLE is a text, a program (FILE.py:NAME), or a file of `capture` (.spz)")
        try:
            found = decode_captured(read_container(Path(str(single))))
        except ContainerError as error:
            raise InputError(f"{single}: {error}; SINGLE is a text, a program, or a file of `capture`") from error
        if not found.device:
            raise InputError(f"{single}: was written with --ranks; SINGLE is of one device")
        (one,) = found.programs
        held = ProgramWithSources(one.program, one.arrays)
        return _Side(held, None, *_positions(held, str(single)))
    if is_jax(single):
        from ...models.sources.partitioned.capture import capture_with_arguments

        (captured,), arguments = capture_with_arguments(single, None)
        held = ProgramWithSources(captured.program, captured.arrays)
        names = [name for name, _ in arguments], [name for name, _ in captured.program.outputs]
        return _Side(held, captured, [np.asarray(a) for _, a in arguments], names)
    captured = capture_one_device(single)
    held = ProgramWithSources(captured.program, captured.arrays)
    return _Side(held, captured, *_positions(held, "SINGLE"))


def _positions(held: ProgramWithSources, who: str) -> tuple[list[Array], Names]:
    """Inputs in the order in which a program takes them.  Raises `InputError` where it has other tensors too, or leaves
    inputs unread: nothing says where these stand among the arguments of a text.
    """
    there = {s.name: s.number for s in held.program.sources if s.kind != "constant"}
    names = [f"input {k}" for k in range(len(there))]
    if set(there) != set(names):
        raise InputError(
            f"{who} reads {', '.join(there)}: beside a text every tensor is an argument of what is called, one behind"
            " another (input 0, input 1, ..), and each is read"
        )
    return [np.asarray(held.arrays[there[n]]) for n in names], (names, [name for name, _ in held.program.outputs])


def _drawn(path: Path, seed: int) -> _Side:
    """The text of one device, on drawn numbers."""
    from ...models.sources.partitioned.texts import capture_text, read_text

    text = read_text(path)
    if (many := text.ranks or 1) > 1:
        raise InputError(f"{path} is for {many} devices; SINGLE is the program of one")
    names = [f"input {k}" for k in range(len(text.arguments))], output_names(len(text.results))
    for below in MOST_DRAWN:
        rng = np.random.default_rng(seed)
        wholes = [_array(rng, shape, dtype, below) for shape, dtype in text.arguments]
        (captured,) = capture_text(text, 1, names, wholes, {})
        held = ProgramWithSources(captured.program, captured.arrays)
        try:
            compare_with_run(captured, [])
        except InputError as error:
            if not isinstance(error.__cause__, IndexError) or below == MOST_DRAWN[-1]:
                raise InputError(str(error).replace("SINGLE", str(path), 1)) from error
            continue
        return _Side(held, captured, wholes, names)
    raise InputError(f"{path}: reads outside a tensor on all numbers that were drawn")


def output_names(many: int) -> list[str]:
    """Names of the results of a text.

    >>> output_names(1), output_names(2)
    (['output'], ['output.0', 'output.1'])
    """
    return ["output"] if many == 1 else [f"output.{k}" for k in range(many)]


def _array(rng: np.random.Generator, shape: Sequence[int], dtype: str, below: int) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(bool)
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, below, tuple(shape)).astype(dtype)
    kind = np.float64 if dtype == "float64" else np.float32
    return np.asarray(rng.standard_normal(tuple(shape))).astype(kind)


def _question(side: _Side, path: Path, ranks: int, said: Layouts) -> Question:
    from ...models.sources.partitioned.texts import capture_text, read_text

    text = read_text(path)
    _require_as_many(path, text.arguments, text.results, side.names)
    cuts = dict[str, list[Stated]]()
    for name, layout in said.inputs.items():
        if name not in side.names[0]:
            raise InputError(f"--layouts: {path} has no input {name!r}; it has {', '.join(side.names[0])}")
        whole = side.wholes[side.names[0].index(name)]
        parts = [layout.part(name, whole.shape, rank, ranks) for rank in range(ranks)]
        cuts[name] = [Stated(tuple(whole.shape), part.runs) for part in parts]
    many = capture_text(text, ranks, side.names, side.wholes, cuts)
    if side.captured is None:
        compare_with_run(None, many)
    else:
        compare_with_run(side.captured, many)
    return ask_question(side.single, many, said)


def _question_of_program(path: Path, make: Make, ranks: int, said: Layouts) -> Question:
    """SINGLE is a text, DISTRIBUTED a JAX program."""
    from ...models.sources.partitioned.capture import capture_with_arguments
    from ...models.sources.partitioned.texts import capture_text, read_text

    many, arguments = capture_with_arguments(make, ranks)
    text = read_text(path)
    if (devices := text.ranks or 1) > 1:
        raise InputError(f"{path} is for {devices} devices; SINGLE is the program of one")
    names = [name for name, _ in arguments], [name for name, _ in many[0].program.outputs]
    _require_as_many(path, text.arguments, text.results, names)
    (one,) = capture_text(text, 1, names, [np.asarray(a) for _, a in arguments], {})
    compare_with_run(one, many)
    return ask_question(ProgramWithSources(one.program, one.arrays), many, said)


def _require_as_many(path: Path, arguments: Sequence[object], results: Sequence[object], names: Names) -> None:
    for what, mine, other in (("arguments", arguments, names[0]), ("results", results, names[1])):
        if len(mine) != len(other):
            more = "; JAX leaves out what nothing reads: jit(.., keep_unused=True)" if what == "arguments" else ""
            raise InputError(
                f"{path} has {len(mine)} {what}, the other side {len(other)} ({', '.join(other)}): they are matched by"
                f" where they stand{more}"
            )
