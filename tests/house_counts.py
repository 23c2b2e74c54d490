"""Counts of the house: what a stranger meets, from the front page to the longest function.

    python tests/house_counts.py [--tree FOLDER] [--wheel]

`--tree`: another checkout, to compare with.  `--wheel`: builds the wheel too (seconds; needs setuptools).  Participles are
names of functions such as `held` or `made` alone; circles are of files, imports inside functions counted; the depth is
that of the longest chain of imports.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from graphlib import CycleError
from pathlib import Path

import function_sizes
import house

PARTICIPLE = re.compile(
    r"(?:[a-z]{3,}ed|made|told|said|held|kept|found|known|given|taken|shown|drawn|written|built|cut|put|sent|split|left"
    r"|met|run|paid|chosen|begun|brought|thought|bound|lost|won|worn)"
)


def functions(root: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of the package, tests and documentation left out."""
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in (*house.ROOMS, path.name):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node


def pages(root: Path) -> list[list[str]]:
    """Lines of every page of docs/."""
    return [
        path.read_text(encoding="utf-8").splitlines()
        for path in sorted((root / "docs").rglob("*.md"))
        if "_build" not in path.parts
    ]


def longest_column(lines: list[str]) -> int:
    """The longest line outside of tables, pictures and consoles."""
    kept, fenced = [0], False
    for line in lines:
        fenced ^= line.startswith("```")
        if not (fenced or line.startswith(("|", "!", "```")) or "](" in line):
            kept.append(len(line))
    return max(kept)


def wheel_bytes(root: Path) -> int:
    """Size of the wheel, built without asking the network."""
    with tempfile.TemporaryDirectory() as out:
        line = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            out,
            str(root),
        ]
        subprocess.run(line, check=True)
        (wheel,) = Path(out).glob("*.whl")
        return wheel.stat().st_size


def circles_and_depth() -> tuple[str, str]:
    """(circles of files, files above one another)."""
    try:
        return "0", str(len(house.floors({name: house.imports(name) for name in house.modules()})))
    except CycleError as error:
        return f"at least one: {' -> '.join(error.args[1])}", "none"


def counts(root: Path) -> dict[str, str]:
    """What is counted, in words, and its number."""
    house.ROOT = root
    readme = (root / "README.md").read_text(encoding="utf-8")
    every, docs = list(functions(root)), pages(root)
    sizes = [((f.end_lineno or f.lineno) - f.lineno + 1, house.parameters_of(f)) for f in every]
    modules = {name: path.read_text(encoding="utf-8") for name, path in house.modules().items()}
    tests = [
        node.name
        for path in (root / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    circles, depth = circles_and_depth()
    return {
        "README, words": f"{len(readme.split()):,}",
        "README, lines": str(len(readme.splitlines())),
        "pages of docs/": str(len(docs)),
        "docs/, KB": f"{sum(len(line) + 1 for page in docs for line in page) / 1000:,.0f}",
        "pages above 300 lines": str(sum(len(page) > 300 for page in docs)),
        "longest column of docs/, outside of tables and links": str(max(map(longest_column, docs), default=0)),
        "pictures (SVG) in docs/": str(len(list((root / "docs").rglob("*.svg")))),
        "modules": f"{len(modules):,}",
        "lines of modules": f"{sum(text.count(chr(10)) for text in modules.values()):,}",
        "longest module, lines": str(max(text.count("\n") for text in modules.values())),
        "modules that begin 'This module'": str(
            sum((ast.get_docstring(ast.parse(text)) or "").startswith("This module") for text in modules.values())
        ),
        "functions": f"{len(every):,}",
        "functions named by a bare participle": str(sum(bool(PARTICIPLE.fullmatch(f.name)) for f in every)),
        "functions above 60 lines": str(sum(lines > function_sizes.LINES for lines, _ in sizes)),
        "functions with more than 8 parameters": str(sum(n > function_sizes.PARAMETERS for _, n in sizes)),
        "circles of files": circles,
        "longest chain of imports": depth,
        "test functions": f"{len(tests):,}",
    }


def main(words: list[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tree", type=Path, default=house.ROOT)
    parser.add_argument("--wheel", action="store_true")
    asked = parser.parse_args(words)
    found = counts(asked.tree.resolve())
    if asked.wheel:
        found["wheel, KB"] = f"{wheel_bytes(asked.tree.resolve()) / 1000:,.0f}"
    for what, number in found.items():
        print(f"{what:52} {number}")


if __name__ == "__main__":
    main(sys.argv[1:])
