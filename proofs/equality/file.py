"""Keeps what a claim of equality is about as container members, so that it is checked without PyTorch.

    equality.json    {"format", "single", "programs", "ranks", "constants", "given", "results", "floors",
                      "relations"}

A program is {"sources", "steps", "outputs", "tensors"}, see `models.equality.program`; equal programs of ranks stand
once.  Numbers of steps are the exact doubles of the program, in hexadecimal.  Relations are the proof: each is seen
from those before it by the checker, which believes none.  Decoding checks types and structure, and that every step
reads what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final, assert_never

from ...models.equality.pair import Given, Known, Mesh, Moves, Pair, Part, Relation, Runs
from ...models.equality.program import Described, RankProgram, Source, Step, Word
from ..container.archive import Member, read_json, write_container
from ..container.canonical import Reader, canonical

EQUALITY: Final = "equality.json"
FORMAT: Final = "shardproof-equality/2"
MOST: Final = 1 << 20
"""Steps, tensors or runs of one list."""
LARGEST: Final = 1 << 40
MOST_RANKS: Final = 1 << 14


def write_equality(pair: Pair) -> bytes:
    """Bytes of an `.spz` file."""
    return write_container(None, encode_equality(pair))


def encode_equality(pair: Pair) -> dict[str, Member]:
    """Members of the container."""
    numbers = dict[RankProgram, int]()
    places = [numbers.setdefault(p, len(numbers)) for p in pair.ranks]
    mesh: dict[str, object] = {}
    if pair.mesh is not None:
        sizes, ranks, captured = pair.mesh.sizes, pair.mesh.ranks, pair.mesh.captured
        mesh["mesh"] = {"sizes": list(sizes), "ranks": [list(r) for r in ranks], "captured": list(captured)}
    return {
        EQUALITY: canonical(
            {
                **mesh,
                "format": FORMAT,
                "single": program_json(pair.single),
                "programs": [program_json(p) for p in numbers],
                "ranks": places,
                "constants": [[n, _given(k)] for n, k in pair.constants],
                "given": [[[n, _given(g)] for n, g in given] for given in pair.given],
                "results": [[[name, _given(p)] for name, p in results] for results in pair.results],
                "floors": list(pair.floors),
                "relations": [
                    [
                        [r.number, r.whole, [[list(run) for run in dim] for dim in r.runs], *_moves(r.moves)]
                        for r in rows
                    ]
                    for rows in pair.relations
                ],
            }
        )
    }


def program_json(program: RankProgram) -> dict[str, object]:
    """A program as JSON."""
    return {
        "sources": [[s.number, s.name, s.kind] for s in program.sources],
        "steps": [
            [s.operator, list(s.reads), list(s.makes), [[k, *_word(w)] for k, w in s.words], s.line]
            for s in program.steps
        ],
        "outputs": [[name, n] for name, n in program.outputs],
        "tensors": [[list(t.shape), t.dtype] for t in program.tensors],
    }


def _word(word: Word) -> tuple[str, object]:
    match word:
        case bool():
            return "truth", word
        case int():
            return "integer", word
        case float():
            return "real", word.hex()
        case str():
            return "text", word
        case tuple():
            return "integers", list(word)
        case _:
            assert_never(word)


def _given(given: Given) -> list[object]:
    match given:
        case Part(of, runs, moves):
            return ["part", of, [[list(run) for run in dim] for dim in runs], *_moves(moves)]
        case Known(number, content):
            return ["known", "" if number is None else float(number).hex(), content]
        case _:
            assert_never(given)


def _moves(moves: Moves) -> list[object]:
    return [[list(m) for m in moves]] if moves else []


def decode_equality(members: Mapping[str, Member]) -> Pair:
    """`ContainerError` names what is wrong."""
    head = read_json(members, EQUALITY).fields(
        *("format", "single", "programs", "ranks", "constants", "given", "results", "floors", "relations"),
        optional=("mesh",),
    )
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    programs = [read_program(r) for r in head["programs"].items(MOST)]
    ranks = []
    for r in head["ranks"].items(MOST_RANKS):
        ranks.append(programs[r.integer(0, len(programs) - 1)])
    single = read_program(head["single"])
    wholes = {s.name: single.tensors[s.number].shape for s in single.sources}
    outputs = {name: single.tensors[n].shape for name, n in single.outputs}
    if not outputs or not ranks:
        head["single"].fail("needs an output, and ranks")
    constants = tuple(
        (pair[0].integer(0, len(single.tensors) - 1), _read_known(pair[1]))
        for pair in (r.parts(2) for r in head["constants"].items(MOST))
    )
    given = _read_all_given(head["given"], ranks, wholes)
    results = _read_results(head["results"], ranks, outputs)
    if len(given) != len(ranks) or len(results) != len(ranks):
        head["given"].fail(f"{len(ranks)} ranks need as many lists of what they are given, and of results")
    integers = {s.name for s in single.sources if single.tensors[s.number].dtype.startswith(("int", "uint"))}
    for name in head["floors"].items(MOST):
        if name.text() not in integers:
            name.fail("is no integer input of the one device")
    relations = []
    for k, row in enumerate(head["relations"].items(MOST_RANKS)):
        if k >= len(ranks):
            row.fail("there are fewer ranks")
        relations.append(_read_relations(row, ranks[k], single))
    if len(relations) != len(ranks):
        head["relations"].fail(f"{len(ranks)} ranks need as many lists of relations")
    floors = head["floors"].texts()
    mesh = _read_mesh(head["mesh"], len(ranks)) if head.has("mesh") else None
    pair = Pair(single, tuple(ranks), constants, tuple(given), tuple(results), floors, tuple(relations), mesh)
    if mesh is None and any(p.moves for p in _all_parts(pair)):
        head["ranks"].fail("parts move, and there is no mesh")
    return pair


def _read_all_given(
    reader: Reader, ranks: Sequence[RankProgram], wholes: Mapping[str, tuple[int, ...]]
) -> list[tuple[tuple[int, Given], ...]]:
    """What every source of every rank is."""
    given = list[tuple[tuple[int, Given], ...]]()
    for k, row in enumerate(reader.items(MOST)):
        if k >= len(ranks):
            row.fail("there are fewer ranks")
        found = {}
        for one in row.items(MOST):
            number, what = one.parts(2)
            n = number.integer(0, len(ranks[k].tensors) - 1)
            found[n] = _read_given(what, wholes, ranks[k].tensors[n].shape)
        if set(found) != {s.number for s in ranks[k].sources}:
            row.fail("every source of the rank must be given once")
        given.append(tuple(sorted(found.items())))
    return given


def _read_results(
    reader: Reader, ranks: Sequence[RankProgram], outputs: Mapping[str, tuple[int, ...]]
) -> list[tuple[tuple[str, Part], ...]]:
    """Where every output of every rank lies."""
    results = list[tuple[tuple[str, Part], ...]]()
    for k, row in enumerate(reader.items(MOST)):
        if k >= len(ranks):
            row.fail("there are fewer ranks")
        numbers, places = dict(ranks[k].outputs), list[tuple[str, Part]]()
        for one in row.items(MOST):
            name, what = one.parts(2)
            if name.text() not in numbers:
                name.fail("the rank has no such output")
            part = _read_given(what, outputs, ranks[k].tensors[numbers[name.text()]].shape)
            if isinstance(part, Known):
                what.fail("an output is a part of one")
            places.append((name.text(), part))
        if len({n for n, _ in places}) != len(places):
            row.fail("an output stands twice")
        results.append(tuple(places))
    return results


def _all_parts(pair: Pair) -> Iterator[Part | Relation]:
    for given, results, relations in zip(pair.given, pair.results, pair.relations, strict=True):
        yield from (g for _, g in given if isinstance(g, Part))
        yield from (p for _, p in results)
        yield from relations


def _read_mesh(reader: Reader, programs: int) -> Mesh:
    """Sizes, and the ranks of every program, each once."""
    head = reader.fields("sizes", "ranks", "captured")
    sizes = tuple(head["sizes"].integers(1, MOST_RANKS, 8))
    ranks = tuple(tuple(row.integers(0, MOST_RANKS - 1, MOST_RANKS)) for row in head["ranks"].items(programs))
    everyone = sorted(r for row in ranks for r in row)
    if not sizes or len(ranks) != programs or any(len(row) != prod(sizes) for row in ranks):
        head["ranks"].fail("needs a rank for all coordinates, of every program")
    if everyone != list(range(len(everyone))):
        head["ranks"].fail("a rank has one place in the mesh")
    captured = tuple(head["captured"].integers(0, len(everyone) - 1, MOST_RANKS))
    if not captured or list(captured) != sorted(set(captured)):
        head["captured"].fail("needs ranks, each once, in order")
    return Mesh(sizes, ranks, captured)


def _read_relations(reader: Reader, program: RankProgram, single: RankProgram) -> tuple[Relation, ...]:
    found, made = dict[int, Relation](), {n for s in program.steps for n in s.makes}
    there = {s.number for s in single.sources} | {n for s in single.steps for n in s.makes}
    for one in reader.items(MOST):
        number, whole, runs, moves = _parts_with_moves(one)
        n, w = number.integer(0, len(program.tensors) - 1), whole.integer(0, len(single.tensors) - 1)
        if n not in made or n in found:
            number.fail("is no tensor that a step of the rank makes, once")
        if w not in there:
            whole.fail("is no tensor of the one device")
        place = _read_runs(runs, single.tensors[w].shape, program.tensors[n].shape)
        found[n] = Relation(n, w, place, _read_moves(moves, len(place)))
    return tuple(found.values())


def read_program(reader: Reader) -> RankProgram:
    """A program; `ContainerError` names what is wrong."""
    head = reader.fields("sources", "steps", "outputs", "tensors")
    tensors = []
    for one in head["tensors"].items(MOST):
        shape, dtype = one.parts(2)
        tensors.append(Described(tuple(shape.integers(0, LARGEST, 16)), dtype.text(64)))
    last, there = len(tensors) - 1, set[int]()
    sources = []
    for one in head["sources"].items(MOST):
        number, name, kind = one.parts(3)
        n = number.integer(0, last)
        if n in there:
            number.fail("stands twice")
        there.add(n)
        sources.append(Source(n, name.text(), kind.text(64)))
    if len({s.name for s in sources}) != len(sources):
        head["sources"].fail("two sources have one name")
    steps = []
    for one in head["steps"].items(MOST):
        operator, reads, makes, words, line = one.parts(5)
        needed, new = reads.integers(0, max(last, 0), 4096), makes.integers(0, max(last, 0), 4096)
        if not set(needed) <= there:
            reads.fail("reads a tensor that no step before it makes")
        if set(new) & there or len(set(new)) != len(new):
            makes.fail("makes a tensor twice")
        there.update(new)
        steps.append(
            Step(
                operator.text(64), tuple(needed), tuple(new), tuple(_read_word(w) for w in words.items(64)), line.text()
            )
        )
    outputs = []
    for one in head["outputs"].items(MOST):
        name, number = one.parts(2)
        n = number.integer(0, max(last, 0))
        if n not in there:
            number.fail("no step makes it")
        outputs.append((name.text(), n))
    if len(dict(outputs)) != len(outputs):
        head["outputs"].fail("two outputs have one name")
    return RankProgram(tuple(sources), tuple(steps), tuple(outputs), tuple(tensors))


def _read_word(reader: Reader) -> tuple[str, Word]:
    name, kind, value = reader.parts(3)
    match kind.text(16):
        case "truth":
            return name.text(64), value.flag()
        case "integer":
            return name.text(64), value.integer()
        case "real":
            return name.text(64), _real(value)
        case "text":
            return name.text(64), value.text()
        case "integers":
            return name.text(64), tuple(value.integers())
        case _:
            kind.fail("no kind of word")


def _real(reader: Reader) -> float:
    try:
        return float.fromhex(reader.text(64))
    except (ValueError, OverflowError):
        reader.fail("no hexadecimal number")


def _read_known(reader: Reader) -> Known:
    kind, number, content = reader.parts(3)
    if kind.text(16) != "known":
        kind.fail("a constant is known")
    return Known(_real(number) if number.text(64) else None, content.text(256))


def _read_given(reader: Reader, wholes: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> Given:
    kind, of, runs, moves = _parts_with_moves(reader)
    if kind.text(16) == "known":
        return _read_known(reader)
    if kind.text(16) != "part":
        kind.fail("is 'part' or 'known'")
    if of.text() not in wholes:
        of.fail("the one device has no such tensor")
    place = _read_runs(runs, wholes[of.text()], shape)
    return Part(of.text(), place, _read_moves(moves, len(place)))


def _parts_with_moves(reader: Reader) -> tuple[Reader, Reader, Reader, Reader | None]:
    """Three parts, and perhaps a fourth."""
    found = tuple(reader.items(4))
    if len(found) not in (3, 4):
        reader.fail("must have 3 parts, or 4")
    return found[0], found[1], found[2], found[3] if len(found) == 4 else None


def _read_moves(reader: Reader | None, dims: int) -> Moves:
    if reader is None:
        return ()
    found = tuple(tuple(row.integers(0, LARGEST, 8)) for row in reader.items(16))
    if len(found) != dims or not any(map(any, found)):
        reader.fail("needs moves for every dimension, and one that moves")
    return found


def _read_runs(runs: Reader, whole: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Runs, ...]:
    """Where a tensor of this shape lies in a whole one."""
    found = []
    for dim in runs.items(16):
        row = []
        for run in dim.items(MOST):
            here, there, many = run.parts(3)
            row.append((here.integer(0, LARGEST), there.integer(0, LARGEST), many.integer(0, LARGEST)))
        found.append(tuple(row))
    if len(found) != len(whole) or len(found) != len(shape):
        runs.fail("needs the runs of every dimension")
    for lines, n, m in zip(found, shape, whole, strict=True):
        if not lines or (len(lines) > 1 and not all(count for _, _, count in lines)):
            runs.fail("a dimension needs a run; one of no positions stands alone")
        at = 0
        for first, beyond, count in lines:
            if first != at or beyond + count > m:
                runs.fail("runs follow one another and lie inside the whole tensor")
            at += count
        if at != n:
            runs.fail(f"runs hold {at} positions of {n}")
    return tuple(found)
