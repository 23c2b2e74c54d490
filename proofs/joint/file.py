"""Writes the members of a plan file that hold an e-graph and its derivation.

    joint.json    {"format", "library", "rounds", "tags", "graphs": sha256 of the e-graph,
                   "tensors": [[name, shape, dtype], ..]  new classes
                   "operators": [[name, class], ..]  every e-node in order; the class of the user's own is null
                   "steps": [[rule, node, [operator, ..], [[fact, number], ..]], ..]
                   a step by a rule of a library has two parts more: the library's number, [what it reads, ..];
                   where its rule is said of groups of axes a third: [[axis of the rule or -1, ..], ..]
                   "libraries": [identity, ..]  of the libraries that steps name; left out where there are none}
    rules-K.spz   library K, a container (`proofs.rewrites.library`)
    base.json     canonical JSON of the user's graph
    nodes.json    canonical JSON of a graph of the added operators: what they read is given, operator O writes `=O`

Everything is read again as it was written, or refused with the place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...models.joint.egraph import EGraph
from ...models.program.graph import ELEMENT_BYTES, Graph, GraphError, Role, Tensor
from ..container.archive import Member, read_json
from ..container.canonical import ContainerError, Reader, canonical
from .books import Book, read_book
from .derivation import BATCH, MOST_AXIS, Derivation, Step

FORMAT: Final = "shardproof-joint/1"
HEAD: Final = "joint.json"
MEMBERS: Final = (HEAD, "base.json", "nodes.json")
MOST_LEVEL: Final = 3
MOST_BOOKS: Final = 16
"""Libraries that one plan uses."""


@dataclass(frozen=True)
class Jointly:
    """What a joint plan says besides the plan of its program: the e-graph, why its operators are equal, and how much
    the tags of the problem say (`models.joint.choices`).
    """

    egraph: EGraph
    derivation: Derivation
    tags: int


def encode_joint(joint: Jointly) -> dict[str, Member]:
    """The members."""
    egraph, own = joint.egraph, {op.name for op in joint.egraph.base.operators}
    books = [book.identity for book in joint.derivation.books]
    head = {
        "format": FORMAT,
        "library": joint.derivation.library,
        "rounds": joint.derivation.rounds,
        "tags": joint.tags,
        "graphs": egraph.sha256,
        "tensors": [[t.name, list(t.shape), t.dtype] for t in egraph.tensors],
        "operators": [[op.name, None if op.name in own else op.output.tensor] for op in egraph.operators],
        "steps": [_written(s, books) for s in joint.derivation.steps],
        **({"libraries": books} if books else {}),
    }
    added = [op for op in egraph.operators if op.name not in own]
    operators = tuple(replace(op, output=replace(op.output, tensor=f"={op.name}")) for op in added)
    return {
        HEAD: canonical(head),
        "base.json": egraph.base.to_json().encode(),
        "nodes.json": Graph("nodes", _tensors_of(egraph, own), operators, ()).to_json().encode(),
        **{f"rules-{k}.spz": book.data for k, book in enumerate(joint.derivation.books)},
    }


def _written(step: Step, books: list[str]) -> list[object]:
    more: list[object] = [books.index(step.book), list(step.reads)] if step.book else []
    more += [[list(g) for g in step.groups]] if step.groups else []
    return [step.rule, step.node, list(step.place), [list(f) for f in step.facts], *more]


def _tensors_of(egraph: EGraph, own: Collection[str]) -> tuple[Tensor, ...]:
    """The tensors of `nodes.json`: what added operators read, then what they write.  `own`: the user's operators."""
    added = [op for op in egraph.operators if op.name not in own]
    known = {t.name: t for t in egraph.union.tensors}
    read = dict.fromkeys(a.tensor for op in added for a in op.inputs if a.tensor in known)
    given = tuple(Tensor(t, known[t].shape, known[t].dtype, Role.INPUT, host=known[t].host) for t in read)
    writes = [(op.name, known[op.output.tensor]) for op in added if op.output.tensor in known]
    return *given, *(replace(t, name=f"={name}", source_shape=None) for name, t in writes)


def _same_tensors(nodes: Graph, egraph: EGraph, own: Collection[str]) -> None:
    """`ContainerError` if `nodes.json` says other things of a tensor than the classes do, or of others: two texts of
    one file that differ.
    """
    wanted = {t.name: t for t in _tensors_of(egraph, own)}
    for t in nodes.tensors:
        if t.name in wanted and t != wanted[t.name]:
            said, is_ = (f"{x.dtype} {list(x.shape)}, {x.role.value}" for x in (t, wanted[t.name]))
            raise ContainerError("member 'nodes.json'", f"says that {t.name!r} is {said}; its class is {is_}")
    names = [t.name for t in nodes.tensors]
    if sorted(names) != sorted(wanted) or nodes.outputs or nodes.state:
        odd = sorted({*names} ^ {*wanted})
        raise ContainerError("member 'nodes.json'", f"has other tensors than its operators: {', '.join(odd[:3])}")


def decode_joint(members: Mapping[str, Member]) -> Jointly:
    """Inverse of `encode_joint`."""
    head = read_json(members, HEAD).fields(
        *("format", "library", "rounds", "tags", "graphs", "tensors", "operators", "steps"), optional=("libraries",)
    )
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    base, nodes = (_graph(members, name) for name in ("base.json", "nodes.json"))
    own, added = {op.name: op for op in base.operators}, {op.name: op for op in nodes.operators}
    tensors = []
    for row in head["tensors"].items():
        name, shape, dtype = row.parts(3)
        if dtype.text(40) not in ELEMENT_BYTES:
            dtype.fail("is no element type")
        tensors.append(Tensor(name.text(), tuple(shape.integers(1, 1 << 40)), dtype.text(40)))
    operators = []
    for row in head["operators"].items():
        name, tensor = row.parts(2)
        if tensor.is_null():
            if name.text() not in own:
                name.fail("is no operator of the user's graph")
            operators.append(own.pop(name.text()))
        else:
            if name.text() not in added:
                name.fail("is no operator of nodes.json, or named twice")
            op = added.pop(name.text())
            operators.append(replace(op, output=replace(op.output, tensor=tensor.text())))
    if own or added:
        head["operators"].fail(f"leaves out {min({**own, **added})!r}")
    away = {op.output.tensor for op in operators if op.function == "to_host"}
    egraph = EGraph(base, tuple(replace(t, host=True) if t.name in away else t for t in tensors), tuple(operators))
    _same_tensors(nodes, egraph, {op.name for op in base.operators})
    if head["graphs"].text(64) != egraph.sha256:
        head["graphs"].fail("is not the hash of what the file holds")
    books = tuple(_book(members, head["libraries"])) if head.has("libraries") else ()
    steps = tuple(_step(s, books) for s in head["steps"].items())
    if unnamed := [b.identity[:12] for b in books if all(s.book != b.identity for s in steps)]:
        head["libraries"].fail(f"holds {unnamed[0]}, which no step names")
    derivation = Derivation(head["library"].text(64), head["rounds"].integer(0, 1 << 20), steps, books)
    return Jointly(egraph, derivation, head["tags"].integer(0, MOST_LEVEL))


def _graph(members: Mapping[str, Member], name: str) -> Graph:
    value = members.get(name)
    if not isinstance(value, bytes):
        raise ContainerError(f"member {name!r}", "is missing")
    try:
        return Graph.from_json(value.decode("ascii"))
    except (GraphError, UnicodeDecodeError) as error:
        raise ContainerError(f"member {name!r}", str(error)) from None


def _book(members: Mapping[str, Member], named: Reader) -> Iterator[Book]:
    """The libraries, each with the identity that is stated."""
    names = named.texts()
    if not names or len(set(names)) < len(names) or len(names) > MOST_BOOKS:
        named.fail(f"must name 1 to {MOST_BOOKS} libraries, each once")
    for k, name in enumerate(names):
        value = members.get(f"rules-{k}.spz")
        if not isinstance(value, bytes):
            raise ContainerError(f"member 'rules-{k}.spz'", "is missing")
        book = read_book(value)
        if book.identity != name or book.data != value:
            named.fail(f"element {k} is not the identity of the library in rules-{k}.spz")
        yield book


def _step(row: Reader, books: Sequence[Book]) -> Step:
    many = len(tuple(row.items()))
    by_book = many in (6, 7)
    rule, node, place, facts, *more = row.parts(many if by_book else 4)
    stated = []
    for fact in facts.items():
        text, number = fact.parts(2)
        stated.append((text.text(), number.integer(0, 1 << 40)))
    step = Step(rule.text(100), node.text(), place.texts(), tuple(stated))
    if not by_book:
        return step
    number, reads, *groups = more
    step = replace(step, book=books[number.integer(0, len(books) - 1)].identity, reads=reads.texts())
    if not groups:
        return step
    found = tuple(tuple(g.integers(BATCH, MOST_AXIS)) for g in groups[0].items())
    if not found:
        groups[0].fail("is empty: where a rule has its own axes it is left out")
    return replace(step, groups=found)
