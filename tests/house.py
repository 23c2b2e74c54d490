"""This script draws the house: which folder imports which, and what has to be believed of each checker.

    python tests/house.py arrows      folders from the ground up, each with the folders that it imports
    python tests/house.py trust       the table of docs/trust.md
    python tests/house.py mermaid     the same arrows as a diagram

A folder is a package of the five rooms.  Imports inside functions count, those for type checkers alone do not: what
never runs need not be believed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("models", "proofs", "verify", "formal", "backends")


@dataclass(frozen=True)
class Checker:
    """One kind of file and the module whose imports are believed when it is checked.  `needs`: folders that it may
    reach, the trusted base.
    """

    kind: str
    module: str
    needs: frozenset[str]


GROUND = frozenset({"models", "models.files", "models.problem", "proofs", "proofs.container", "verify"})
"""What every checker may use: text, files, problems and claims, the container, verdicts and the budget of a check."""

PROGRAMS = frozenset({"models.program", "models.machine", "models.layout", "models.communication", "models.cost"})

JOINT = frozenset({"models.joint", "proofs.joint"})
"""What plan files may hold besides: an e-graph and its derivation."""

CHECKERS = (
    Checker("selection certificate", "verify.selection.certificate", GROUND | {"proofs.selection", "verify.selection"}),
    Checker(
        "extraction from an e-graph",
        "verify.egraphs.extraction",
        GROUND | {"models.egraphs", "proofs.egraphs", "verify.egraphs"},
    ),
    Checker("resharding", "verify.plan.communication", GROUND | PROGRAMS | {"verify.plan"}),
    Checker(
        "placements",
        "verify.collective_programs.placement",
        GROUND | PROGRAMS | {"models.collective_programs", "proofs.collective_programs", "verify.collective_programs"},
    ),
    Checker(
        "collective program",
        "verify.collective_programs.program",
        GROUND | PROGRAMS | {"models.collective_programs", "proofs.collective_programs", "verify.collective_programs"},
    ),
    Checker(
        "schedule",
        "verify.schedules.certificate",
        GROUND | {"models.schedules", "proofs.schedules", "verify.schedules"},
    ),
    Checker(
        "rule library",
        "verify.rewrites.library",
        GROUND | {"models.program", "models.rewrites", "proofs.rewrites", "verify.rewrites"},  # formulas of operators
    ),
    Checker(
        "pipelined step",
        "verify.pipelines.certificate",
        GROUND
        | PROGRAMS
        | JOINT
        | {"models.pipelines", "models.schedules", "proofs.pipelines", "proofs.schedules", "proofs.selection"}
        | {"proofs.plan", "verify.pipelines", "verify.schedules", "verify.selection", "verify.plan"}
        | {"models.joint", "proofs.joint"},  # a stage's plan is a bundle, which may hold a derivation
    ),
    Checker(
        "overlapped plan",
        "verify.overlap.certificate",
        GROUND
        | PROGRAMS
        | JOINT
        | {"models.pipelines", "models.schedules", "proofs.overlap", "proofs.pipelines", "proofs.schedules"}
        | {"proofs.plan", "proofs.selection", "verify.overlap", "verify.pipelines"}
        | {"verify.schedules", "verify.selection", "verify.plan"},
    ),
    Checker(
        "plan with submeshes",
        "verify.views.certificate",
        GROUND
        | PROGRAMS
        | JOINT
        | {"models.views", "proofs.plan", "proofs.selection", "proofs.views"}
        | {"verify.plan", "verify.selection", "verify.views"},
    ),
    Checker(
        "plan",
        "verify.plan.plan",
        GROUND | PROGRAMS | JOINT | {"proofs.selection", "proofs.plan", "verify.selection", "verify.plan"},
    ),
    Checker(
        "joint plan",
        "verify.joint.plan",
        GROUND
        | PROGRAMS
        | JOINT
        | {"proofs.selection", "proofs.plan", "verify.selection", "verify.plan", "verify.joint"}
        | {"models.rewrites", "proofs.rewrites"},  # what a step says that names a rule of a library
    ),
    Checker(
        "equality of programs",
        "verify.equality.certificate",
        GROUND | {"models.equality", "proofs.equality", "verify.equality"},
    ),
    Checker(
        "plan with its job, beside its plan and proof",
        "verify.equality.job",
        GROUND
        | PROGRAMS
        | JOINT
        | {"models.equality", "proofs.equality", "proofs.plan", "proofs.selection", "verify.equality", "verify.plan"},
    ),
    Checker("several plans, beside theirs", "verify.portfolio.certificate", GROUND | PROGRAMS | {"verify.portfolio"}),
    Checker(
        "plans for a range of sizes, beside theirs",
        "verify.portfolio.sizes",
        GROUND
        | PROGRAMS
        | JOINT
        | {"proofs.selection", "proofs.plan", "proofs.portfolio", "verify.selection", "verify.plan"}
        | {"verify.portfolio"},
    ),
)


@cache
def modules() -> Mapping[str, Path]:
    """Every module of the rooms by its dotted name."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@dataclass(frozen=True)
class Contents:
    """What a file says: its docstring, what it imports when it runs, and what it defines.

    `imports`: (level, module, names), a module alone for each name of `import`; `functions`: (name, lines, parameters).
    """

    docstring: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    functions: tuple[tuple[str, int, int], ...]
    classes: tuple[str, ...]


@cache
def contents(path: Path) -> Contents:
    """Each file is read once, whoever asks; its tree is not kept."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported, functions, classes = list[tuple[int, str, tuple[str, ...]]](), list[tuple[str, int, int]](), list[str]()
    for node, runs in _statements(tree.body, True):
        match node:
            case ast.Import() if runs:
                imported += [(0, a.name, ()) for a in node.names]
            case ast.ImportFrom() if runs:
                imported.append((node.level, node.module or "", tuple(a.name for a in node.names)))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1, parameters_of(node)))
            case ast.ClassDef():
                classes.append(node.name)
    return Contents(ast.get_docstring(tree) or "", tuple(imported), tuple(functions), tuple(classes))


def _statements(body: Iterable[ast.AST], runs: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement, and whether it is not for type checkers alone."""
    for node in body:
        typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        yield node, runs and not typing
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, field, ()), runs and not typing)


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments a function takes, itself not counted."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (bool(names) and names[0] in ("self", "cls"))


@cache
def imports(name: str) -> frozenset[str]:
    """Modules of ours that `name` imports."""
    path, known = modules()[name], modules()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    out = set()
    for level, module, names in contents(path).imports:
        if level:
            base = ".".join([*package[: len(package) - level + 1], *([module] if module else [])])
            out |= {f"{base}.{a}" if f"{base}.{a}" in known else base for a in names}
    return frozenset(m for m in out if m in known and m != name)


@cache
def foreign(name: str) -> frozenset[str]:
    """Packages of others that `name` imports."""
    out = {module.partition(".")[0] for level, module, _ in contents(modules()[name]).imports if not level and module}
    return frozenset(out - set(sys.stdlib_module_names))


def folder(name: str) -> str:
    """The package that a module lies in.

    >>> folder("models.layout.placement"), folder("verify.verdict")
    ('models.layout', 'verify')
    """
    return name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]


def arrows() -> dict[str, set[str]]:
    """Folder -> folders that its modules import.  Folders of `models/sources` and of `backends/cuda` and the like
    count for themselves.
    """
    out: dict[str, set[str]] = {}
    for name in modules():
        out.setdefault(folder(name), set()).update(f for m in imports(name) if (f := folder(m)) != folder(name))
    return out


def floors(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Folders by how many stairs lie below them; raises `graphlib.CycleError` for a circle.

    >>> floors({"roof": ["wall"], "wall": ["ground"], "ground": []})
    [['ground'], ['wall'], ['roof']]
    """
    height: dict[str, int] = {}
    for name in TopologicalSorter({k: list(v) for k, v in graph.items()}).static_order():
        height[name] = 1 + max((height[below] for below in graph.get(name, ())), default=-1)
    return [sorted(k for k, h in height.items() if h == level) for level in sorted(set(height.values()))]


def closure(name: str) -> frozenset[str]:
    """`name`, everything that it imports, and the packages that this passes through."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        m = todo.pop()
        if m not in seen:
            seen.add(m)
            todo += [*imports(m), *(p for i in range(m.count(".") + 1) if (p := m.rsplit(".", i)[0]) in modules())]
    return frozenset(seen)


def lines(names: Iterable[str]) -> int:
    """Lines of these modules."""
    return sum(len(modules()[m].read_text(encoding="utf-8").splitlines()) for m in names)


def trust() -> str:
    """The table: what a verdict about each kind of file rests on, in lines of the three rooms that a checker may
    import.
    """
    rows = [("file", "checker", "modules", "`verify/`", "`proofs/`", "`models/`", "lines in all")]
    for c in CHECKERS:
        base = closure(c.module)
        parts = [lines(m for m in base if m.split(".")[0] == room) for room in ("verify", "proofs", "models")]
        rows.append((c.kind, f"`{c.module}`", str(len(base)), *(f"{n:,}" for n in parts), f"{sum(parts):,}"))
    every = frozenset().union(*(closure(c.module) for c in CHECKERS))
    parts = [lines(m for m in every if m.split(".")[0] == room) for room in ("verify", "proofs", "models")]
    rows.append(("all of them", "", str(len(every)), *(f"{n:,}" for n in parts), f"{sum(parts):,}"))
    text = ["| " + " | ".join(r) + " |" for r in rows]
    text.insert(1, "|---|---|" + "---:|" * 5)
    return "\n".join(text)


def main(words: list[str]) -> None:
    """Command line."""
    graph = arrows()
    match words:
        case ["trust"]:
            print(trust())
        case ["mermaid"]:
            print("graph BT")
            print(*(f"  {a} --> {b}" for a in sorted(graph) for b in sorted(graph[a])), sep="\n")
        case _:
            for level, names in enumerate(floors(graph)):
                for name in names:
                    print(f"{level:2}  {name:32} {' '.join(sorted(graph[name]))}")


if __name__ == "__main__":
    main(sys.argv[1:])
