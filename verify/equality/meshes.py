"""Makes one program of the programs of all ranks of a mesh, so that what they do is looked at once for all of them.

Theorem.  Let every rank at coordinates c run the program that a mesh program P says for c.  Then stack(P) makes for
every tensor x of P the stack of the x of all ranks.  By induction over steps: an operator on every rank's own tensors
is the operator on the dimensions behind those of the mesh; a sum, greatest element or concatenation over a group is one
over the dimensions of the mesh in which its ranks differ, the same for all others; a number that moves is a number plus
multiples of coordinates.  All ranks can run each step together, so none waits for ever.

What is left to be proved is a pair of one rank (of a pipeline: of one for every stage), with no sums over ranks but
over dimensions; nothing of it is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from typing import Final

from ...models.equality.pair import Known, Pair, Part, Relation, Runs
from ...models.equality.program import Described, RankProgram, Source
from .index import Undecided
from .ranks import covers
from .stacks import Shape, Stacker, Writer
from .steps import Malformed

MOST_PLACES: Final = 1 << 12
"""Places of one output on ranks."""


def stack_ranks(pair: Pair, work: Callable[[int], None]) -> tuple[Pair, int]:
    """A pair of stacks, one rank for every program of the mesh, and how many tensors the one device has itself; the
    others of its are stacks of parts of these.  Raises `Malformed`, and `Undecided` for what is not known of a mesh.
    """
    mesh = pair.mesh
    if mesh is None or not mesh.sizes or any(len(r) != prod(mesh.sizes) for r in mesh.ranks):
        raise Malformed("a mesh has a rank for all coordinates")
    everyone = sorted(r for ranks in mesh.ranks for r in ranks)
    if everyone != list(range(len(everyone))) or len(mesh.ranks) != len(pair.ranks):
        raise Malformed("every rank has one place in the mesh")
    if not set(mesh.captured) <= set(everyone) or not mesh.captured:
        raise Malformed("ranks were captured that are not there")
    for name, _ in pair.single.outputs:
        _require_cover(pair, name, work)
    single = Writer(list(pair.single.tensors), list(pair.single.steps))
    count, wholes = len(single.tensors), Stacker(mesh.sizes, single)
    outputs, names = dict(pair.single.outputs), dict[str, int]()
    results, relations = list[tuple[tuple[str, Part], ...]](), list[tuple[Relation, ...]]()
    for mine in pair.results:
        rows = list[tuple[str, Part]]()
        for name, one in mine:
            n = wholes.parts(outputs[one.of], one.runs, one.moves)
            names[f"{one.of} {n}"] = n
            rows.append((name, Part(f"{one.of} {n}", _all(single.shape(n)))))
        results.append(tuple(rows))
    for row in pair.relations:
        seen = list[Relation]()
        for r in row:
            work(1)
            try:
                n = wholes.parts(r.whole, r.runs, r.moves)
            except Undecided:  # what is not seen is not used
                continue
            seen.append(Relation(r.number, n, _all(single.shape(n))))
        relations.append(tuple(seen))
    one_device = replace(
        pair.single, steps=tuple(single.steps), tensors=tuple(single.tensors), outputs=tuple(names.items())
    )
    stacked = [_stacked(pair, k, work) for k in range(len(pair.ranks))]
    found = replace(
        pair,
        single=one_device,
        ranks=tuple(p for p, _ in stacked),
        given=tuple(g for _, g in stacked),
        results=tuple(results),
        relations=tuple(relations),
        mesh=None,
    )
    return found, count


def _stacked(
    pair: Pair, k: int, work: Callable[[int], None]
) -> tuple[RankProgram, tuple[tuple[int, Part | Known], ...]]:
    """One program of the mesh as a program of stacks, and what it is given: whole tensors."""
    mesh, program, given = pair.mesh, pair.ranks[k], dict(pair.given[k])
    if mesh is None:
        raise Malformed("no mesh")
    w = Writer([Described((*mesh.sizes, *t.shape), t.dtype) for t in program.tensors], [])
    stacker, sources, rows = Stacker(mesh.sizes, w), list[Source](), list[tuple[int, Part | Known]]()
    wholes = {s.name: pair.single.tensors[s.number].shape for s in pair.single.sources}
    for source in program.sources:
        work(1)
        local, what = program.tensors[source.number], given[source.number]
        shape = local.shape if isinstance(what, Known) else wholes[what.of]
        w.tensors.append(Described(shape, local.dtype))
        n = len(w.tensors) - 1
        sources.append(Source(n, source.name, source.kind))
        if isinstance(what, Known):
            rows.append((n, what))
            one = w.reshape(n, (*(1,) * len(mesh.sizes), *shape))
            w.expand(one, (*mesh.sizes, *shape), source.number)
            continue
        rows.append((n, Part(what.of, _all(shape))))
        declared = w.tensors[source.number]
        stacker.parts(n, what.runs, what.moves, source.number)
        if w.tensors[source.number] != declared:
            raise Malformed(f"{source.name} is given as a part of another shape")
    for step in program.steps:
        work(1)
        declared_all = [w.tensors[n] for n in step.makes]
        stacker.step(program, step)
        for n, declared in zip(step.makes, declared_all, strict=True):
            if w.tensors[n] != declared:
                raise Malformed(f"{step.operator} makes {w.tensors[n].shape}, the program says {declared.shape}")
    return RankProgram(tuple(sources), tuple(w.steps), program.outputs, tuple(w.tensors)), tuple(rows)


def _all(shape: Shape) -> tuple[Runs, ...]:
    return tuple(((0, 0, n),) for n in shape)


def _require_cover(pair: Pair, name: str, work: Callable[[int], None]) -> None:
    """`Undecided` where no rank has some positions of an output of the one device."""
    places, sizes = list[Part](), pair.mesh.sizes if pair.mesh is not None else ()
    shape = pair.single.tensors[dict(pair.single.outputs)[name]].shape
    for rows in pair.results:
        for _, one in rows:
            if one.of != name:
                continue
            if _tiles(one, shape, sizes):
                return
            moving = [range(s) if any(m[j] for m in one.moves) else range(1) for j, s in enumerate(sizes)]
            if prod(map(len, moving)) > MOST_PLACES:
                raise Undecided(f"{name} lies in more than {MOST_PLACES} places")
            for at in product(*moving):
                work(1)
                off = [sum(by * c for by, c in zip(m, at, strict=True)) for m in one.moves] or [0] * len(one.runs)
                runs = tuple(
                    tuple((here, there + o, many) for here, there, many in lines)
                    for lines, o in zip(one.runs, off, strict=True)
                )
                places.append(Part(name, runs))
    if not covers(list(dict.fromkeys(places)), shape, work):
        raise Undecided(f"{name}: no rank has some of its positions")


def _tiles(part: Part, shape: Shape, sizes: Shape) -> bool:
    """Whether the blocks of one program's ranks are all of a tensor: of every dimension one behind another from 0 on,
    along dimensions of the mesh of their own.
    """
    used = set[int]()
    for dim, (lines, n) in enumerate(zip(part.runs, shape, strict=True)):
        if len(lines) != 1 or lines[0][1]:
            return False
        width = lines[0][2]
        move = part.moves[dim] if part.moves else (0,) * len(sizes)
        for j in sorted((j for j, by in enumerate(move) if by), key=lambda j: move[j]):
            if move[j] != width or j in used:
                return False
            used.add(j)
            width *= sizes[j]
        if width != n:
            return False
    return True
