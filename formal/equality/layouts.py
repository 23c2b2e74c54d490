"""Reads what a user says of the layouts of ranks' tensors, where shapes and values do not tell it, or tell it wrongly.

{"inputs": {NAME: LAYOUT, ..}, "outputs": {NAME: LAYOUT, ..}}        NAME as `equal` prints it
LAYOUT      "whole", {"shard": DIM} (rank r of n has block r of n), {"partial": "sum"} (outputs: the ranks' tensors add
            up to the whole), {"partial": "mean"} (outputs: their mean is the whole: a rank's own loss under data
            parallelism)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...models.equality.pair import Part, Runs
from ...models.equality.program import Described, RankProgram, Step
from ...models.files.input import regular
from ...models.files.json_text import parse_json
from ...models.text import InputError

PARTIAL = {"sum": "sum", "mean": "avg"}
"""What is said of parts, and the reduction over ranks that makes the whole of them."""


@dataclass(frozen=True)
class Layout:
    """`dim`: of which every rank has a block; `partial`: the reduction that makes the whole of the ranks' tensors."""

    dim: int | None = None
    partial: str | None = None

    def part(self, name: str, shape: Sequence[int], rank: int, ranks: int) -> Part:
        """The part of a whole tensor that a rank has.  Raises `InputError` for a dimension that does not divide."""
        runs: list[Runs] = [((0, 0, n),) for n in shape]
        if self.dim is not None:
            if not 0 <= self.dim < len(shape) or shape[self.dim] % ranks:
                raise InputError(
                    f"--layouts: dimension {self.dim} of {name!r}, shape {tuple(shape)}, for {ranks} ranks"
                )
            size = shape[self.dim] // ranks
            runs[self.dim] = ((0, rank * size, size),)
        return Part(name, tuple(runs))


@dataclass(frozen=True)
class Layouts:
    """What is said of inputs and of outputs, by name."""

    inputs: Mapping[str, Layout]
    outputs: Mapping[str, Layout]


NOTHING = Layouts({}, {})


def read_layouts(path: Path | None) -> Layouts:
    """The layouts of a file.  Raises `InputError` that names the word which is not known."""
    if path is None:
        return NOTHING
    try:
        return layouts_of(parse_json(regular(path).read_bytes()), str(path))
    except (OSError, ValueError) as error:
        raise error if isinstance(error, InputError) else InputError(f"{path}: {error}") from error


def layouts_of(found: object, path: str) -> Layouts:
    """The layouts that an object of JSON says; `path` says where it comes from.  Raises `InputError`.

    >>> layouts_of({"outputs": {"output": {"partial": "sum"}}}, "here").outputs["output"].partial
    'sum'
    """
    if not isinstance(found, dict) or not set(found) <= {"inputs", "outputs"}:
        raise InputError(f'{path}: write {{"inputs": {{NAME: LAYOUT}}, "outputs": {{NAME: LAYOUT}}}}')
    sides = []
    for side in ("inputs", "outputs"):
        rows = found.get(side, {})
        if not isinstance(rows, dict):
            raise InputError(f"{path}: {side!r} is no object")
        sides.append({str(name): _layout(path, str(name), value, side == "outputs") for name, value in rows.items()})
    return Layouts(*sides)


def _layout(path: str, name: str, value: object, output: bool) -> Layout:
    match value:
        case "whole":
            return Layout()
        case {"shard": int(dim), **rest} if not rest and not isinstance(dim, bool):
            return Layout(dim)
        case {"partial": str(how), **rest} if not rest and output and how in PARTIAL:
            return Layout(partial=PARTIAL[how])
        case _:
            more = "".join(f', {{"partial": "{how}"}}' for how in PARTIAL) if output else ""
            raise InputError(f'{path}: {name!r} is {value!r}; known are "whole", {{"shard": DIM}}{more}')


def all_reduce_outputs(program: RankProgram, reductions: Mapping[str, str], ranks: int) -> RankProgram:
    """A program whose outputs of these names are reduced over all ranks.  Raises `InputError` for a mean of whole
    numbers.
    """
    steps, tensors = list(program.steps), list(program.tensors)
    outputs = dict(program.outputs)
    for name, op in reductions.items():
        dtype = program.tensors[outputs[name]].dtype
        if op == "avg" and not dtype.startswith(("float", "bfloat")):
            raise InputError(f"--layouts: output {name!r} has type {dtype}, of which no mean over ranks is taken")
        words = (("op", op), ("ranks", tuple(range(ranks))))
        steps.append(Step("all_reduce", (outputs[name],), (len(tensors),), words, "--layouts"))
        tensors.append(Described(program.tensors[outputs[name]].shape, dtype))
        outputs[name] = len(tensors) - 1
    return replace(program, steps=tuple(steps), tensors=tuple(tensors), outputs=tuple(outputs.items()))
