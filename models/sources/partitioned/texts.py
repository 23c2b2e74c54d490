"""Reads the text of a program for `shardproof equal`, StableHLO or HLO, and runs it for real: the program of one
device, or of all ranks of a mesh, before or after XLA's partitioner.

shard_map     read as it stands: `sdy.manual_computation`
before        shardings are said (`sdy.sharding`, `mhlo.sharding`, HLO's `sharding=`): XLA partitions it here, for as
              many host devices, and what it leaves for one device is read
after         the text has a schedule or collectives of devices, arguments are smaller than the one device's, or nothing
              says how they are cut: the text is one device's own program, and is read as it stands

Where results alone are cut, and nothing else tells which of these it is, a text is refused.

What the numbers of the arguments are a text does not say: they are given (`wholes`), whole ones, and cut here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ...equality.captured import Captured, Stated, Unreadable
from ...files.input import regular
from ..jax.ir import Block, Module, Op, inside
from .collectives import COLLECTIVES, Place
from .devices import Compiled, as_replicas, parse_module, require_devices
from .hlo import Lines, Tiles, header_of, lines_of, stablehlo_of, tiles_of, without_comments
from .machine import Held, Machine, manual_everywhere, meshes_of, read_by_manual
from .operators import made_of
from .ranks import Argument, place_in, rank_program
from .shardings import ordered_groups
from .writer import Writer

Plain = NDArray[np.generic]
Row = tuple[tuple[int, ...], str]
"""Shape and element type."""
LARGEST: Final = 1 << 26
"""Bytes of a text that are read."""
_TILES: Final = re.compile(r"devices=\[[\d,]+\](?:<=\[([\d,]+)\]|([\d,]+))")
_MESH: Final = re.compile(r"(?:sdy\.mesh @[\w.$-]+ = |#sdy\.mesh)<\[([^\]]*)\]")
_MARKS: Final = re.compile(
    r"sdy\.sharding|sdy\.manual_computation|@Sharding\b|@SPMDFullToShardShape|@xla\.sdy\.|sdy\.reshard"
)
"""What only programs before the partitioner have, of which tensors are whole."""


def ranks_said(data: str) -> int | None:
    """How many devices a text is for, as far as it says.  Raises `Unreadable` where it says two numbers.

    >>> ranks_said("HloModule f, is_scheduled=true, num_partitions=4")
    4
    """
    if (said := _number(data, "num_partitions")) is not None:
        return said
    data = without_comments(data)
    if (mesh := _MESH.search(data)) is not None:
        return prod(int(n) for n in re.findall(r'"[^"]+"\s*=\s*(\d+)', mesh[1]))
    if (tiles := _TILES.search(data)) is not None:
        return prod(int(n) for n in tiles[1].split(",")) if tiles[1] else 1 + tiles[2].count(",")
    return None


def _number(data: str, *names: str) -> int | None:
    """A number that the text says of its module."""
    said, found = header_of(data), set[str]()
    for name in names:
        found |= said.get(name, set())
    if len(found) > 1:
        raise Unreadable(f"{' or '.join(names)} is said to be {' and '.join(sorted(found))}")
    return int(found.pop()) if found else None


def load_text(path: Path) -> str:
    """What is in a file.  Raises `InputError`, `Unreadable`."""
    with regular(path).open("rb") as f:
        data = f.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise Unreadable(f"{path} has more than {LARGEST} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is no text: {error}") from error


@dataclass(frozen=True)
class Text:
    """A program; `compiles`: what XLA is given of it, with the lines that it says; `ordered`: groups of devices that
    stand in an order of their own, which StableHLO does not say.
    """

    name: str
    data: str
    module: Module
    lines: Lines
    compiles: str | bytes
    ordered: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @property
    def ranks(self) -> int | None:
        """For how many devices it is, as far as it says."""
        return ranks_said(self.data)

    @cached_property
    def behind(self) -> bool:
        """Whether it says that XLA's partitioner is behind it: by its schedule, or by what only programs of one device
        have.
        """
        if "true" in header_of(self.data).get("is_scheduled", ()):
            return True
        if _MARKS.search(str(self.module)):
            return False
        found = (o.name for f in self.module.body.operations for o in inside(f.operation))
        return any(name in COLLECTIVES for name in found)

    @cached_property
    def main(self) -> Op:
        """The function that runs."""
        return Machine(self.module, Place(0, 1, {}), Writer()).functions["main"]

    @property
    def body(self) -> Block:
        """Of it."""
        return self.main.regions[0].blocks[0]

    @cached_property
    def arguments(self) -> list[Row]:
        """Shapes and element types."""
        return [made_of(Writer(), a.type) for a in self.body.arguments]

    @cached_property
    def results(self) -> list[Row]:
        """Shapes and element types."""
        end = list(self.body.operations)[-1].operation
        return [made_of(Writer(), o.type) for o in end.operands]

    def tiles(self, side: str) -> list[Tiles | None]:
        """How arguments (`arg_attrs`) or results (`res_attrs`) are cut, where `mhlo.sharding` says it."""
        many = len(self.arguments if side == "arg_attrs" else self.results)
        if side not in self.main.attributes:
            return [None] * many
        rows = cast("Sequence[Any]", self.main.attributes[side])
        return [tiles_of(str(r["mhlo.sharding"].value)) if "mhlo.sharding" in r else None for r in rows]

    def free(self, side: str) -> list[bool]:
        """Of which arguments, or results, no sharding is said."""
        many = len(self.arguments if side == "arg_attrs" else self.results)
        if side not in self.main.attributes:
            return [True] * many
        rows = cast("Sequence[Any]", self.main.attributes[side])
        return ["mhlo.sharding" not in r and "sdy.sharding" not in r for r in rows]


def read_text(path: Path) -> Text:
    """A text.  Raises `InputError`, `Unreadable`."""
    data = load_text(path)
    try:
        if path.suffix == ".mlir" or data.lstrip().startswith(("module", "#loc", "#map")):
            if "__elided__" in data:
                raise Unreadable("the text leaves out numbers of large constants (__elided__): write it whole")
            module = parse_module(data)
            return _required(Text(path.name, data, module, lines_of(path.name, ""), _placed(module, path.name)))
        if "HloModule" not in data[:4096]:
            raise Unreadable("is neither StableHLO (module {..}) nor HLO text (HloModule ..)")
        found = stablehlo_of(data)
        lines = lines_of(path.name, data)
        return _required(Text(path.name, data, parse_module(found), lines, found, ordered_groups(data)))
    except Unreadable as error:
        raise Unreadable(f"{path}: {error}") from error


def _placed(module: Module, name: str) -> str:
    """The module with the lines of its text, which XLA keeps where operators have names."""
    said = str(cast("Any", module).operation.get_asm(enable_debug_info=True))
    return re.sub(r'loc\("-":(\d+):(\d+)\)', rf'loc("line \1"("{name}":\1:\2))', said)


def _required(text: Text) -> Text:
    many = _number(text.data, "num_replicas", "replica_count")
    if many is not None and many > 1:
        raise Unreadable(f"is of {many} replicas (pmap): programs of partitions are read (jit, shard_map)")
    ranks_said(text.data)
    Machine(text.module, Place(0, 1, {}), Writer()).main()
    return text


def capture_text(
    text: Text,
    ranks: int,
    names: tuple[Sequence[str], Sequence[str]],
    wholes: Sequence[Plain],
    cuts: Mapping[str, Sequence[Stated]],
) -> list[Captured]:
    """What every rank does, or the one device where `ranks` is 1; `names` of arguments and results, `wholes` in the
    order of arguments; `cuts`: which parts ranks are given where the text does not say it.  Raises `Unreadable`.
    """
    require_devices(ranks)
    try:
        return list(_Read(text, ranks, names, wholes, cuts).programs())
    except Unreadable as error:
        raise Unreadable(f"{text.name}: {error}") from error


@dataclass
class _Read:
    text: Text
    ranks: int
    names: tuple[Sequence[str], Sequence[str]]
    wholes: Sequence[Plain]
    cuts: Mapping[str, Sequence[Stated]]

    def programs(self) -> Iterator[Captured]:
        """What every rank does."""
        text, shapes = self.text, [np.asarray(a).shape for a in self.wholes]
        whole = shapes == [s for s, _ in text.arguments]
        if self.ranks == 1 or not whole or text.behind:
            return self._own()
        if any(t is not None and t.cuts for t in text.tiles("arg_attrs")) or _MARKS.search(str(text.module)):
            return self._whole(manual_everywhere(text.module, meshes_of(text.module)))
        if any(t is not None and t.cuts for t in text.tiles("res_attrs")):
            raise Unreadable(
                "cuts its results alone, and may stand before XLA's partitioner or behind it: say shardings of"
                " arguments as well (in_shardings), or write what XLA makes of it (compiled.as_text())"
            )
        return self._own()

    # ------------------------------------------------------------------ before the partitioner

    def _whole(self, direct: bool) -> Iterator[Captured]:
        """A text of whole tensors: `direct`: read as it stands, else as XLA partitions it."""
        text, local = self.text, not direct
        free = text.free("arg_attrs"), text.free("res_attrs")
        compiled = Compiled(text.compiles, self.ranks, free, "sdy." in str(text.module))
        module, ordered, lines = text.module, text.ordered, text.lines
        if local:
            if compiled.partitioned is None:
                raise Unreadable("XLA left nothing after its partitioner")
            module, ordered = compiled.partitioned.module, compiled.partitioned.ordered
            lines = lines_of(text.name, compiled.partitioned.text, text.lines)
        there, after = (
            compiled.lies(side) or [Tiles((), ())] * len(rows)
            for side, rows in ((False, text.arguments), (True, text.results))
        )
        pieces = [
            [whole[t.part(whole.shape, rank)] for rank in range(self.ranks)]
            for t, whole in zip(there, self.wholes, strict=True)
        ]
        made = compiled.run(pieces)
        for name, said in self.cuts.items():
            k = list(self.names[0]).index(name)
            for rank, one in enumerate(said):
                self._agrees(name, one, self.wholes[k].shape, there[k], rank)
        for rank in range(self.ranks):
            machine = self._machine(module, rank, ordered, local, lines)
            arguments = []
            for k, (name, whole, sharding) in enumerate(
                zip(self.names[0], self.wholes, read_by_manual(machine), strict=True)
            ):
                index = (slice(None),) * whole.ndim
                if local:
                    index = there[k].part(whole.shape, rank)
                elif sharding is not None:
                    index = sharding.part(whole.shape, rank)
                arguments.append(Argument(name, whole[index], place_in(whole.shape, index), sharding))

            def result(k: int, held: Held, rank: int = rank) -> tuple[Stated, Plain]:
                shape = text.results[k][0]
                index = (slice(None),) * len(shape)
                if local:
                    return place_in(shape, after[k].part(shape, rank)), made[k][rank]
                if held.sharding is not None:
                    index = held.sharding.part(shape, rank)
                own = after[k].part(shape, rank)
                if place_in(shape, own) == place_in(shape, index):
                    return place_in(shape, index), made[k][rank]
                return place_in(shape, index), _joined(made[k], after[k], shape)[index]

            yield rank_program(machine, arguments, self.names[1], result)

    def _agrees(self, name: str, said: Stated, shape: Sequence[int], tiles: Tiles, rank: int) -> None:
        """Raises `Unreadable` where a layout that is said is not the text's own."""
        if place_in(shape, tiles.part(shape, rank)).runs != said.runs:
            raise Unreadable(f"--layouts: {name!r} lies otherwise by the text's own sharding; leave it out")

    # ------------------------------------------------------------------ after it

    def _own(self) -> Iterator[Captured]:
        """A text of one device's own program."""
        text = self.text
        columns: list[list[tuple[Stated, Plain]]] = []
        for k, (name, whole, tiles) in enumerate(zip(self.names[0], self.wholes, text.tiles("arg_attrs"), strict=True)):
            columns.append([self._part(k, name, whole, tiles, rank) for rank in range(self.ranks)])
        outputs = text.tiles("res_attrs")
        made = Compiled(as_replicas(str(text.module), text.ordered), self.ranks).run(
            [[a for _, a in column] for column in columns]
        )
        for rank in range(self.ranks):
            machine = self._machine(text.module, rank, text.ordered, self.ranks > 1, text.lines)
            arguments = [
                Argument(name, column[rank][1], column[rank][0])
                for name, column in zip(self.names[0], columns, strict=True)
            ]

            def result(k: int, held: Held, rank: int = rank) -> tuple[Stated | None, Plain]:
                array, tiles = made[k][rank], outputs[k]
                if tiles is None:
                    return None, array
                cut = [m for m in tiles.blocks[: len(tiles.blocks) - tiles.extra]] or [1] * array.ndim
                whole = tuple(n * m for n, m in zip(array.shape, cut, strict=True))
                return place_in(whole, tiles.part(whole, rank)), array

            yield rank_program(machine, arguments, self.names[1], result)

    def _part(self, k: int, name: str, whole: Plain, tiles: Tiles | None, rank: int) -> tuple[Stated, Plain]:
        """What a rank is given of an argument."""
        shape = self.text.arguments[k][0]
        if name in self.cuts:
            lies = self.cuts[name][rank]
            if tiles is not None:
                self._agrees(name, lies, whole.shape, tiles, rank)
        elif tiles is not None and tiles.cuts:
            lies = place_in(whole.shape, tiles.part(whole.shape, rank))
        elif shape == whole.shape:
            lies = place_in(whole.shape, (slice(None),) * whole.ndim)
        else:
            raise Unreadable(
                f"argument {k} ({name!r}) has shape {shape}, the one device's {whole.shape}, and nothing says which"
                f' part it is: --layouts with {{"inputs": {{"{name}": {{"shard": DIM}}}}}}'
            )
        if lies.shape() != shape:
            raise Unreadable(
                f"{name!r} has shape {shape}; as it is said to lie it has {lies.shape()}, of {whole.shape}"
            )
        array = whole
        for dim, runs in enumerate(lies.runs):
            places = [there + i for _, there, many in runs for i in range(many)]
            array = np.take(array, places, axis=dim)
        return lies, array

    def _machine(
        self, module: Module, rank: int, ordered: Mapping[int, tuple[tuple[int, ...], ...]], local: bool, lines: Lines
    ) -> Machine:
        place = Place(rank, self.ranks, meshes_of(module), ordered)
        return Machine(module, place, Writer(self.ranks == 1), local, lines)


def _joined(pieces: Sequence[Plain], tiles: Tiles, shape: Sequence[int]) -> Plain:
    """The whole of what devices have."""
    whole = np.zeros(tuple(shape), pieces[0].dtype)
    for rank, piece in enumerate(pieces):
        whole[tiles.part(shape, rank)] = piece
    return whole
