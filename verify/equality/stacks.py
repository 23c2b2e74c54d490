"""Writes what all ranks of a mesh do as steps on stacks: of every tensor what the ranks have of it, each at its
coordinates; the dimensions of the mesh stand in front of the tensor's own (`meshes` says why that is the same).

A part of a tensor of the one device that moves with the coordinates is that tensor in another shape: its blocks, one
for every coordinate, are a dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from ...models.equality.pair import Moves, Runs
from ...models.equality.program import COLLECTIVES, Described, RankProgram, Step, Word
from .index import Undecided
from .segments import ELEMENTWISE
from .steps import Malformed, require_step

Shape = tuple[int, ...]

REDUCED: Final[Mapping[str, str]] = {"sum": "sum", "avg": "sum", "max": "amax", "min": "amin"}
"""What a reduction over ranks is over dimensions."""
TOGETHER: Final = COLLECTIVES | {"barrier"}
OVER: Final = frozenset({"sum", "amax", "amin"})
ALONG: Final = frozenset({"cat", "gather", "scatter_add", "cumsum", "topk", "sort"})


@dataclass
class Writer:
    """Writes steps behind one another."""

    tensors: list[Described]
    steps: list[Step]
    line: str = ""

    def make(self, operator: str, reads: Sequence[int], made: Described, into: int | None = None, **words: Word) -> int:
        """A step that makes a new tensor, or `into`."""
        if into is None:
            self.tensors.append(made)
        else:
            self.tensors[into] = made
        number = len(self.tensors) - 1 if into is None else into
        self.steps.append(Step(operator, tuple(reads), (number,), tuple(words.items()), self.line))
        return number

    def shape(self, n: int) -> Shape:
        """The shape of a tensor."""
        return self.tensors[n].shape

    def reshape(self, n: int, shape: Shape, into: int | None = None) -> int:
        """The same elements in another shape."""
        if self.shape(n) == shape and into is None:
            return n
        return self.make("reshape", (n,), replace(self.tensors[n], shape=shape), into, shape=shape)

    def expand(self, n: int, shape: Shape, into: int | None = None) -> int:
        """Dimensions of one element, repeated."""
        if self.shape(n) == shape and into is None:
            return n
        return self.make("expand", (n,), replace(self.tensors[n], shape=shape), into, shape=shape)

    def permute(self, n: int, dims: Sequence[int]) -> int:
        """Dimensions in another order."""
        if list(dims) == list(range(len(dims))):
            return n
        old = self.tensors[n]
        return self.make("permute", (n,), replace(old, shape=tuple(old.shape[d] for d in dims)), dims=tuple(dims))

    def slice(self, n: int, dim: int, start: int, stop: int) -> int:
        """Positions of a dimension."""
        old = self.tensors[n]
        if not 0 <= start <= stop <= old.shape[dim]:
            raise Malformed(f"positions {start} to {stop} of {old.shape[dim]}")
        if stop - start == old.shape[dim]:
            return n
        shape = (*old.shape[:dim], stop - start, *old.shape[dim + 1 :])
        return self.make("slice", (n,), replace(old, shape=shape), dim=dim, start=start, stop=stop, step=1)


@dataclass
class Stacker:
    """`sizes` of the mesh; `writer`, `program`: what is written, of which program of the mesh."""

    sizes: Shape
    writer: Writer
    _parts: dict[tuple[int, tuple[Runs, ...], Moves], int] = field(default_factory=dict)

    @property
    def many(self) -> int:
        """Dimensions of the mesh."""
        return len(self.sizes)

    # ------------------------------------------------------------------ parts of the one device's tensors

    def parts(self, whole: int, runs: Sequence[Runs], moves: Moves, into: int | None = None) -> int:
        """The stack of the parts that ranks have of a whole tensor.  `Malformed` where one lies outside; `Undecided`
        where parts are not blocks one behind another.
        """
        key = whole, tuple(runs), moves
        if into is None and key in self._parts:
            return self._parts[key]
        w, shape, k = self.writer, self.writer.shape(whole), self.many
        if len(runs) != len(shape) or (moves and (len(moves) != len(shape) or any(len(m) != k for m in moves))):
            raise Malformed("a part needs runs and moves for every dimension")
        n, wide, own, at = whole, list[int](), list[int](), dict[int, int]()
        for dim, lines in enumerate(runs):
            move = moves[dim] if moves else (0,) * k
            mine = sorted((j for j in range(k) if move[j]), key=lambda j: -move[j])
            if mine and len(lines) > 1:
                raise Undecided("parts of several runs move")
            if not mine:
                pieces = [w.slice(n, dim, there, there + many) for _, there, many in lines]
                if len(pieces) > 1:
                    old, total = w.tensors[n], sum(many for _, _, many in lines)
                    made = replace(old, shape=(*old.shape[:dim], total, *old.shape[dim + 1 :]))
                    n = w.make("cat", pieces, made, dim=dim)
                else:
                    (n,) = pieces
                own.append(len(wide))
                wide.append(w.shape(n)[dim])
                continue
            ((_, start, many),) = lines
            width = many
            for j in reversed(mine):
                if move[j] != width or not width or j in at:
                    raise Undecided("parts of ranks are no blocks one behind another")
                width *= self.sizes[j]
            n = w.slice(n, dim, start, start + width)
            for j in mine:
                at[j] = len(wide)
                wide.append(self.sizes[j])
            own.append(len(wide))
            wide.append(many)
        n = w.permute(w.reshape(n, tuple(wide)), [*(at[j] for j in sorted(at)), *own])
        local = tuple(wide[d] for d in own)
        n = w.reshape(n, (*(s if j in at else 1 for j, s in enumerate(self.sizes)), *local))
        n = w.expand(n, (*self.sizes, *local), into)
        if into is None:
            self._parts[key] = n
        return n

    # ------------------------------------------------------------------ steps

    def step(self, program: RankProgram, step: Step) -> None:
        """Writes the steps that make the stacks of what a step makes."""
        words, moves = dict(step.words), dict[str, tuple[int, ...]]()
        for name in ("number", "value", "start"):
            move = words.pop(f"{name}_moves", None)
            if move is not None:
                if not isinstance(move, tuple) or len(move) != self.many or name not in words:
                    raise Malformed(f"{step.operator} moves its {name} by {str(move)[:40]}")
                moves[name] = move
        along = words.pop("along", None)
        if (along is None) == (step.operator in TOGETHER) or "ranks" in words:
            raise Malformed(f"{step.operator} of a mesh is {'not ' * (along is None)}along dimensions of it")
        if step.operator == "barrier":  # all are there: they run each step together
            if words or step.reads or step.makes or moves:
                raise Malformed("a barrier has operands, or other words")
            self._dims(along or ())
            return
        said = {**words, **({} if along is None else {"ranks": tuple(range(self._members(along)))})}
        plain = replace(step, words=tuple(said.items()))
        require_step(program, plain)
        self.writer.line = step.line
        if along is not None:
            self._collective(step, words, self._dims(along))
        elif moves:
            self._moved(step, words, moves, program)
        else:
            self._local(step, words, [program.tensors[i].shape for i in step.reads])

    def _dims(self, along: Word) -> tuple[int, ...]:
        if (
            not isinstance(along, tuple)
            or list(along) != sorted(set(along))
            or any(not 0 <= j < self.many for j in along)
        ):
            raise Malformed(f"no dimensions of the mesh: {str(along)[:40]}")
        return along

    def _members(self, along: Word) -> int:
        return prod(self.sizes[j] for j in self._dims(along))

    def _local(self, step: Step, words: Mapping[str, Word], shapes: Sequence[Shape]) -> None:
        """An operator on every rank's own tensors: behind the dimensions of the mesh."""
        w, k, name = self.writer, self.many, step.operator
        if name in ELEMENTWISE:
            wide = max(map(len, shapes))
            reads = [self._align(n, s, wide) for n, s in zip(step.reads, shapes, strict=True)]
            self._made(step, reads, words)
        elif name == "matmul" or name in ("tril", "triu", "send", "recv"):
            self._made(step, step.reads, words)
        elif name in OVER:
            self._made(step, step.reads, {**words, "dims": tuple(d + k for d in _integers(words, "dims"))})
        elif name in ALONG or name in ("slice", "slice_scatter"):
            self._made(step, step.reads, {**words, "dim": _integer(words, "dim") + k})
        elif name == "reshape" or name == "full":
            self._made(step, step.reads, {**words, "shape": (*self.sizes, *_integers(words, "shape"))})
        elif name == "permute":
            self._made(step, step.reads, {"dims": (*range(k), *(d + k for d in _integers(words, "dims")))})
        elif name == "expand":
            shape = _integers(words, "shape")
            n = self._align(step.reads[0], shapes[0], len(shape))
            self._made(step, (n,), {"shape": (*self.sizes, *shape)})
        elif name == "iota":
            local = w.tensors[step.makes[0]]
            said = {key: words[key] for key in ("n", "start", "step", "dtype")}
            n = w.make("iota", (), replace(local, shape=local.shape[k:]), None, **said)
            n = w.reshape(n, (*(1,) * k, *w.shape(n)))
            w.expand(n, local.shape, step.makes[0])
        elif name == "index" and len(step.reads) == 2:
            self._rows(step, bool(words.get("wrap", True)), shapes)
        elif name == "index_add" and len(step.reads) == 3:
            self._rows_added(step, bool(words.get("wrap", True)), shapes)
        else:
            raise Undecided(f"{name} on a mesh is not known here")

    def _made(self, step: Step, reads: Sequence[int], words: Mapping[str, Word]) -> None:
        """A step of this operator, of stacks that are declared."""
        self.writer.steps.append(Step(step.operator, tuple(reads), step.makes, tuple(words.items()), step.line))

    def _align(self, n: int, local: Shape, wide: int) -> int:
        """A stack with dimensions of one element before its own, so that it has so many behind the mesh's."""
        return self.writer.reshape(n, (*self.sizes, *(1,) * (wide - len(local)), *local))

    def _rows(self, step: Step, wrap: bool, shapes: Sequence[Shape]) -> None:
        """x[i]: rows of the first dimension."""
        w, (x, index), (shape, places) = self.writer, step.reads, shapes
        taken = (prod(places), *shape[1:])
        at = self._spread(index, taken)
        made = replace(w.tensors[x], shape=(*self.sizes, *taken))
        n = w.make("gather", (x, at), made, dim=self.many, wrap=wrap)
        w.reshape(n, (*self.sizes, *places, *shape[1:]), step.makes[0])

    def _rows_added(self, step: Step, wrap: bool, shapes: Sequence[Shape]) -> None:
        """x with the source added at x[i]."""
        w, (x, index, source), (shape, places, added) = self.writer, step.reads, shapes
        wide, taken = (*places, *shape[1:]), (prod(places), *shape[1:])
        n = w.expand(self._align(source, added, len(wide)), (*self.sizes, *wide))
        n = w.reshape(n, (*self.sizes, *taken))
        self._made(
            replace(step, operator="scatter_add"), (x, self._spread(index, taken), n), {"dim": self.many, "wrap": wrap}
        )

    def _spread(self, index: int, taken: Shape) -> int:
        """Positions of rows, for every element of a row."""
        n = self.writer.reshape(index, (*self.sizes, taken[0], *(1,) * (len(taken) - 1)))
        return self.writer.expand(n, (*self.sizes, *taken))

    # ------------------------------------------------------------------ what differs between ranks

    def _moved(
        self, step: Step, words: dict[str, Word], moves: Mapping[str, tuple[int, ...]], program: RankProgram
    ) -> None:
        """A step with a number, or a place, that moves."""
        w, made = self.writer, program.tensors[step.makes[0]]
        shapes = [program.tensors[i].shape for i in step.reads]
        match step.operator, words:
            case "full", {"value": int(value)} if not isinstance(value, bool):
                shape = _integers(words, "shape")
                n = self._number(value, moves["value"], made.dtype)
                n = w.reshape(n, (*self.sizes, *(1,) * len(shape)))
                w.expand(n, (*self.sizes, *shape), step.makes[0])
            case "slice" | "slice_scatter", {"step": 1}:
                self._block(step, words, moves["start"], shapes)
            case _, {"number": int(number)} if "number" in moves and len(shapes) == 1 and not isinstance(number, bool):
                dtype = program.tensors[step.reads[0]].dtype
                n = w.reshape(self._number(number, moves["number"], dtype), (*self.sizes, *(1,) * len(shapes[0])))
                reads = (n, step.reads[0]) if words.get("reverse") else (step.reads[0], n)
                self._made(step, reads, {})
            case _:
                raise Undecided(f"{step.operator} with words that move is not known here")

    def _number(self, first: int, moves: tuple[int, ...], dtype: str) -> int:
        """A whole number that moves with the coordinates, as a tensor of the mesh's shape."""
        w, k = self.writer, self.many
        if not dtype.startswith(("int", "float")):
            raise Undecided(f"a number of {dtype} moves")
        here = Described(self.sizes, dtype)
        n = w.make("full", (), here, shape=self.sizes, value=first, dtype=dtype)
        for j, by in enumerate(moves):
            if by:
                size = self.sizes[j]
                one = w.make("iota", (), Described((size,), dtype), n=size, start=0, step=by, dtype=dtype)
                one = w.expand(w.reshape(one, tuple(size if i == j else 1 for i in range(k))), self.sizes)
                n = w.make("add", (n, one), here)
        return n

    def _block(self, step: Step, words: Mapping[str, Word], moves: tuple[int, ...], shapes: Sequence[Shape]) -> None:
        """A block of a dimension, at a place that moves along one dimension of the mesh by its own length: of all such
        blocks the one with the rank's coordinate.
        """
        w, k = self.writer, self.many
        dim, start, stop = (_integer(words, name) for name in ("dim", "start", "stop"))
        mine, length = [j for j, by in enumerate(moves) if by], stop - start
        if len(mine) != 1 or moves[mine[0]] != length:
            raise Undecided("blocks that ranks take lie not one behind another")
        (j,) = mine
        size, scatter = self.sizes[j], step.operator == "slice_scatter"
        n = w.slice(step.reads[0], dim + k, start, start + size * length)
        if scatter and n != step.reads[0]:
            raise Undecided("blocks that ranks write leave a rest")
        shape = w.shape(n)
        n = w.reshape(n, (*shape[: dim + k], size, length, *shape[dim + k + 1 :]))
        wide, dtype = w.shape(n), w.tensors[n].dtype
        sides = []
        for at in (j, dim + k):
            one = w.make("iota", (), Described((size,), "int64"), n=size, start=0, step=1, dtype="int64")
            sides.append(w.reshape(one, tuple(size if d == at else 1 for d in range(len(wide)))))
        square = tuple(size if d in (j, dim + k) else 1 for d in range(len(wide)))
        own = w.make("eq", sides, Described(square, "bool"))
        if scatter:
            new = w.shape(step.reads[1])
            other = w.reshape(step.reads[1], (*new[: dim + k], 1, *new[dim + k :]))
            n = w.make("where", (own, other, n), Described(wide, dtype))
            w.reshape(n, shape, step.makes[0])
        else:
            none = w.make("full", (), Described((), dtype), shape=(), value=0, dtype=dtype)
            n = w.make("where", (own, n, none), Described(wide, dtype))
            self._made(replace(step, operator="sum"), (n,), {"dims": (dim + k,), "keep": False})

    # ------------------------------------------------------------------ collectives

    def _collective(self, step: Step, words: Mapping[str, Word], along: tuple[int, ...]) -> None:
        """What a group does, over the dimensions of the mesh in which its ranks differ."""
        w, k, (n,) = self.writer, self.many, step.reads
        shape = w.shape(n)[k:]
        members = prod(self.sizes[j] for j in along)
        once = tuple(1 if j in along else s for j, s in enumerate(self.sizes))
        others = [j for j in range(k) if j not in along]
        apart = (*(self.sizes[j] for j in others), *(self.sizes[j] for j in along))
        back = [(*others, *along).index(j) for j in range(k)]
        behind = range(k, k + len(shape))
        match step.operator, words:
            case "all_reduce", {"op": str(op)}:
                w.expand(self._sum(n, op, along, members), (*self.sizes, *shape), step.makes[0])
            case "all_gather", _ if shape:
                n = w.permute(n, [*others, *along, *behind])
                n = w.reshape(n, (*once, members * shape[0], *shape[1:]))
                w.expand(n, (*self.sizes, *w.shape(n)[k:]), step.makes[0])
            case "reduce_scatter", {"op": str(op)} if shape and shape[0] % members == 0:
                rest = (shape[0] // members, *shape[1:])
                n = w.reshape(self._sum(n, op, along, members), (*apart, *rest))
                n = w.permute(n, [*back, *behind])
                w.reshape(n, (*self.sizes, *rest), step.makes[0])
            case "all_to_all", {"send": tuple(send), "receive": tuple(receive)}:
                each = shape[0] // members if shape else 0
                if send != (each,) * members or receive != send:
                    raise Undecided("ranks of a mesh exchange unequal parts")
                n = w.permute(n, [*others, *along, *behind])
                n = w.reshape(n, (*(self.sizes[j] for j in others), members, members, each, *shape[1:]))
                o = len(others)
                n = w.permute(n, [*range(o), o + 1, o, *range(o + 2, len(w.shape(n)))])
                n = w.permute(w.reshape(n, (*apart, *shape)), [*back, *behind])
                w.reshape(n, (*self.sizes, *shape), step.makes[0])
            case "broadcast", {"source": int(source)} if source < members:
                for j in reversed(along):
                    source, at = divmod(source, self.sizes[j])
                    n = w.slice(n, j, at, at + 1)
                w.expand(n, (*self.sizes, *shape), step.makes[0])
            case _:
                raise Undecided(f"{step.operator} along a mesh is not known here")

    def _sum(self, n: int, op: str, along: tuple[int, ...], members: int) -> int:
        """A reduction over dimensions of the mesh, each of one element then."""
        if op not in REDUCED:
            raise Undecided(f"a reduction by {op} along a mesh is not known here")
        w, old = self.writer, self.writer.tensors[n]
        shape = tuple(1 if j in along else s for j, s in enumerate(old.shape))
        n = w.make(REDUCED[op], (n,), replace(old, shape=shape), dims=along, keep=True)
        return w.make("mul", (n,), replace(old, shape=shape), number=1.0 / members) if op == "avg" else n


def _integers(words: Mapping[str, Word], name: str) -> tuple[int, ...]:
    value = words.get(name)
    if not isinstance(value, tuple):
        raise Malformed(f"no {name}")
    return value


def _integer(words: Mapping[str, Word], name: str) -> int:
    value = words.get(name)
    if not isinstance(value, int):
        raise Malformed(f"no {name}")
    return value
