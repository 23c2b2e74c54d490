"""Counts of the house: what a stranger meets, from the front page to the longest function.

    python tests/house_counts.py [--trees FOLDER ..] [--wheel] [--page FILE.md]

`--trees`: other checkouts, a column each.  `--wheel`: builds the wheel too (seconds; needs setuptools).  Participles are
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
from collections.abc import Iterator, Mapping
from graphlib import CycleError
from pathlib import Path

import function_sizes
import house

HERE = Path(__file__).resolve().parent.parent

PARTICIPLE = re.compile(
    r"(?:[a-z]{3,}ed|made|told|said|held|kept|found|known|given|taken|shown|drawn|written|built|cut|put|sent|split|left"
    r"|met|run|paid|chosen|begun|brought|thought|bound|lost|won|worn)"
)


GONE = {
    "redistribution": r"(?<!-)\bredistribut(?:ion|ions|ed|e|es)\b",
    "movement (of a tensor)": r"\b(?:all|every|its|their|each|no) movements?\b|\bmovements\b",
    "view (of a machine)": r"\b[Pp]lans? with views\b|\bviews? of (?:a|one|the|every|its) (?:machine|division|region)"
    r"|\bon (?:a|one|two|every|the|its) views?\b|\bviews in use\b",
    "scheme": r"\bscheme\b(?!s? of)",
    "error bar": r"\berror bars?\b",
    "held bytes": r"\bheld bytes\b",
    "letter, mail, post": r"\bmails?\b|\bposted\b|\bletters? (?:to|from|between) (?:a|the|one) (?:stage|rank)",
    "unfit": r"\bunfit\b",
    "turn (of a loop)": r"\b(?:every|each|one|other|all|per|of) turns?\b(?! out)|\bturn by turn\b",
    "seconds of the wall": r"\bseconds? of the wall\b",
}
"""Words of ours in the first table of the glossary -> how a text has them in that meaning."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Strings of a module that hold several words and are no docstring."""
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in bare and " " in n.value.strip():
            yield n.value


def gone_words(pages: list[list[str]], modules: Mapping[str, str]) -> int:
    """How often pages and messages have a word that the glossary calls gone."""
    patterns = [re.compile(pattern, re.IGNORECASE) for pattern in GONE.values()]
    read = ["\n".join(page) for page in pages if "# Glossary" not in page[:1]]
    for text in modules.values():
        if any(p.search(text) for p in patterns):
            read += texts(ast.parse(text))
    return sum(len(p.findall(text)) for p in patterns for text in read)


def functions(root: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of the package, tests and documentation left out."""
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in (*house.ROOMS, path.name):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node


def pages(root: Path) -> list[list[str]]:
    """Lines of every page of docs/ but its history."""
    return [
        path.read_text(encoding="utf-8").splitlines()
        for path in sorted((root / "docs").rglob("*.md"))
        if not {"_build", "history"} & {*path.parts}
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
    except CycleError:
        return "at least one", "none"


def counts(root: Path) -> dict[str, str]:
    """What is counted, in words, and its number."""
    house.ROOT = root
    for remembers in vars(house).values():  # what it read of another tree
        if hasattr(remembers, "cache_clear"):
            remembers.cache_clear()
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
        "words of ours in pages and messages": str(gone_words(docs, modules)),
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
    parser.add_argument("--trees", type=Path, nargs="*", default=[])
    parser.add_argument("--wheel", action="store_true")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(words)
    columns = []
    for root in (tree.resolve() for tree in [*asked.trees, HERE]):
        found = counts(root)
        if asked.wheel:
            found["wheel, KB"] = f"{wheel_bytes(root) / 1000:,.0f}"
        columns.append(found)
    for what in columns[-1]:
        print(f"{what:52} {'  '.join(f'{found[what]:>12}' for found in columns)}")
    if asked.page is not None:
        asked.page.write_text(page(words, [*asked.trees, HERE], columns), encoding="utf-8")


def page(words: list[str], trees: list[Path], columns: list[dict[str, str]]) -> str:
    """A table with a column for every tree, under its commit."""
    git = ["git", "log", "-1", "--format=%h, %cs"]
    heads = [subprocess.run(git, cwd=t, capture_output=True, text=True, check=True).stdout.strip() for t in trees]
    out = ["# Counts of the house", "", f"`python tests/house_counts.py {' '.join(words)}`.", ""]
    out += ["What is counted, and how, stands in the script. Generated references count as pages.", ""]
    out += [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    out += [f"| {what} | {' | '.join(found[what][:120] for found in columns)} |" for what in columns[-1]]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
