"""Reads what a user says of the layouts of ranks' tensors, where shapes and values do not tell it, or tell it wrongly.

{"inputs": {NAME: LAYOUT, ..}, "outputs": {NAME: LAYOUT, ..}}        NAME as `equal` prints it
LAYOUT      "whole", {"shard": DIM} (rank r of n has block r of n), {"partial": "sum"} (outputs: the ranks' tensors add
            up to the whole)
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

PARTIAL = "partial"


@dataclass(frozen=True)
class Layout:
    """`dim`: of which every rank has a block; `partial`: the ranks' tensors add up."""

    dim: int | None = None
    partial: bool = False

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
    True
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
        case {"partial": "sum", **rest} if not rest and output:
            return Layout(partial=True)
        case _:
            more = ', {"partial": "sum"}' if output else ""
            raise InputError(f'{path}: {name!r} is {value!r}; known are "whole", {{"shard": DIM}}{more}')


def all_reduce_outputs(program: RankProgram, names: Sequence[str], ranks: int) -> RankProgram:
    """A program whose outputs of these names are added up over all ranks."""
    steps, tensors = list(program.steps), list(program.tensors)
    outputs = dict(program.outputs)
    for name in names:
        words = (("op", "sum"), ("ranks", tuple(range(ranks))))
        steps.append(Step("all_reduce", (outputs[name],), (len(tensors),), words, "--layouts"))
        tensors.append(Described(*_described(program, outputs[name])))
        outputs[name] = len(tensors) - 1
    return replace(program, steps=tuple(steps), tensors=tuple(tensors), outputs=tuple(outputs.items()))


def _described(program: RankProgram, number: int) -> tuple[tuple[int, ...], str]:
    return program.tensors[number].shape, program.tensors[number].dtype
