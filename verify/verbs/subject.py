"""What a checked file is about, for its reader, the same for every kind of file: model and machine
with the hashes that tell two of one name apart, what a machine is called and is not, limit, space and assumptions,
claims, how times are rounded, versions, and kernels that no claim covers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...models.files.json_text import parse_json
from ...models.machine.difference import builtin_notice
from ...models.machine.machine import Machine
from ...models.machine.text import render
from ...models.problem.unit import rounding_words
from ...models.program.graph import Graph
from ...models.program.opaque import kernels_of
from ...models.text import bytes_text, escape_text
from ..verdict import CheckResult, Rounding
from .kinds import Judged

HELD = TypeVar("HELD")


def content_as(found: Judged[object], wanted: type[HELD]) -> HELD:
    """What a file holds, as the type that its kind says."""
    if not isinstance(found.held, wanted):
        raise TypeError(f"{type(found.held).__name__} is no {wanted.__name__}")
    return found.held


@dataclass(frozen=True)
class Subject:
    """One file.  `title`: its kind, and its identity; `graph` of a program, and its `space` and `memory_limit`;
    `machines` that it holds; `asked` and `own`: lines between these and the claims; `line`: of a claim; `rest`: lines
    behind the claims; `versions`: what the writer states; `document`: what only its kind says, as data; `told`: what
    the files state and nobody checks.
    """

    title: str
    identity: str
    results: tuple[CheckResult, ...]
    line: Callable[[CheckResult], str]
    graph: Graph | None = None
    space: str = ""
    memory_limit: int | None = None
    machines: tuple[Machine, ...] = ()
    asked: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    rounding: tuple[Rounding, ...] = ()
    versions: tuple[tuple[str, str], ...] | None = None
    document: dict[str, object] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)

    @property
    def assumptions(self) -> list[str]:
        """All that any claim rests on."""
        return sorted({a for r in self.results for a in r.assumptions} | set(self.stated))

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernels of the user's own."""
        return () if self.graph is None else kernels_of(self.graph)

    @property
    def formulas(self) -> tuple[str, ...]:
        """Operators of the user's own and their formulas, each once."""
        uses = () if self.graph is None else self.graph.specified
        return tuple(dict.fromkeys(escape_text(f"{use.name}: {use.formula}") for use in uses))


def subject_lines(s: Subject, show_machine: bool) -> list[str]:
    """Lines of text; with `show_machine` every constant of the machines."""
    out = [f"{s.title} {s.identity}"]
    if s.graph is not None:
        out.append(f"  model {s.graph.name}: {len(s.graph.operators)} operators, sha256 {s.graph.sha256()}")
    for machine in s.machines:
        out.append(f"  machine {machine.name} {'x'.join(map(str, machine.hierarchy))}: sha256 {machine.sha256()}")
        out += [f"  {line}" for line in s.asked]
        out += [f"  note: the machine is {notice}"] if (notice := builtin_notice(machine)) else []
        out += [f"    {line}" for line in render(machine).split("\n")] if show_machine else []
    if s.graph is not None:
        limit = "none" if s.memory_limit is None else f"{bytes_text(s.memory_limit)} per device"
        out.append(f"  memory limit {limit}; space {s.space}; assumptions: {', '.join(s.assumptions)}")
    out += [f"  {line}" for line in s.own]
    out += [f"  specified by the user: {words}" for words in s.formulas]
    out += [s.line(r) for r in s.results]
    out += [f"  {line}" for line in s.rest]
    for one in s.rounding:
        out.append(f"  {f'{one.name}: ' if one.name else ''}{rounding_words(one.scale, one.entries)}")
    if s.versions is not None:
        versions = ", ".join(" ".join(version) for version in s.versions)
        out.append(f"  stated by the writer, not checked: versions {versions or 'of nothing'}")
    if s.kernels:
        out.append(f"  kernels of the user's own, which no claim covers: {', '.join(map(ascii, s.kernels))}")
    return out


def subject_document(s: Subject, file: str, show_machine: bool) -> dict[str, object]:
    """The same as data: `plans`, `machines`, `rounding`, `stated_not_checked`, `kernels`, `specified`, as far as there
    are any.
    """
    machines = [_machine(m, show_machine) for m in s.machines]
    out: dict[str, object] = {}
    if s.graph is not None:
        graph = s.graph
        out["plans"] = [
            {
                "file": file,
                "identity": s.identity,
                "model": {
                    "name": graph.name,
                    "sha256": graph.sha256(),
                    "operators": len(graph.operators),
                    "tensors": len(graph.tensors),
                },
                "machine": machines[0],
                "memory_limit": s.memory_limit,
                "space": s.space,
                "assumptions": s.assumptions,
                **s.document,
            }
        ]
    elif machines:
        out["machines"] = [{"file": file, **m} for m in machines]
    rounding = [
        {"file": file, **({"of": r.name} if r.name else {}), "scale": r.scale, "rounding_bound": r.entries}
        for r in s.rounding
    ]
    out |= {"rounding": rounding} if rounding else {}
    told = s.told | ({} if s.versions is None else {"versions": dict(s.versions)})
    out |= {"stated_not_checked": [{"file": file, **told}]} if told else {}
    out |= {"kernels": list(s.kernels)} if s.kernels else {}
    out |= {"specified": list(s.formulas)} if s.formulas else {}
    return out


def join_documents(documents: Sequence[dict[str, object]]) -> dict[str, object]:
    """The lists of several documents put together, word by word."""
    out: dict[str, list[object]] = {}
    for document in documents:
        for word, items in document.items():
            if isinstance(items, list):
                out.setdefault(word, []).extend(items)
    return dict(out)


def _machine(machine: Machine, show_machine: bool) -> dict[str, object]:
    notice = builtin_notice(machine)
    return {
        "name": machine.name,
        "sha256": machine.sha256(),
        "hierarchy": list(machine.hierarchy),
        **({"notice": notice} if notice else {}),
        **({"constants": parse_json(machine.to_json())} if show_machine else {}),
    }
