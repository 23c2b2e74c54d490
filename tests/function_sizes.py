"""Functions that are longer than a screen, or take more than eight parameters: a list that only gets shorter.

    python tests/function_sizes.py          what there is now, in the form of `sizes.txt`
    python tests/function_sizes.py write    takes out what is short now, and lowers what got shorter; adds nothing
    python tests/function_sizes.py why      how many there are of each kind, see `kind_of`

A line is the file, the function, its lines (docstring included; 0: at most 60) and its parameters (0: at most 8).
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import house
from house import parameters_of

LINES, PARAMETERS = 60, 8
LIST = Path(__file__).with_name("data") / "function-sizes.txt"

Sizes = Mapping[tuple[str, str], tuple[int, int]]
"""(file, function) -> its lines and parameters; 0 for what is within the limit."""


def large_functions() -> Sizes:
    """Functions of the house that are beyond a limit."""
    out: dict[tuple[str, str], tuple[int, int]] = {}
    top = {p.stem: p for p in Path(house.ROOT).glob("*.py")}
    for path in sorted({*house.modules().values(), *top.values()}):
        for name, lines, parameters in house.contents(path).functions:
            if lines > LINES or parameters > PARAMETERS:
                at = (path.relative_to(house.ROOT).as_posix(), name)
                before = out.get(at, (0, 0))
                now = (lines if lines > LINES else 0, parameters if parameters > PARAMETERS else 0)
                out[at] = max(before[0], now[0]), max(before[1], now[1])
    return out


def kind_of(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Why a function is beyond a limit, where there is a reason that splitting does not take away.

    kernel      compiled by Numba: loops over arrays, which parts of it would each have to be given one by one
    command     a verb: its parameters are its options, written down once more by `click`
    way in      names that users write: `shardproof.plan(..)`, the sizes of a built-in model
    signature   called by PyTorch or ONNX, which say what it takes
    """
    words = {ast.unparse(d) for d in node.decorator_list}
    at = path.as_posix()
    if any(word.startswith("njit") for word in words):
        return "kernel"
    if any(word.startswith("click.command") or ".command(" in word for word in words):
        return "command"
    if at in ("api.py", "problems.py") or at.startswith("models/sources/zoo/"):
        return "way in"
    if at in ("models/sources/distributed/windows.py", "models/sources/distributed/apart.py") or node.name == "forward":
        return "signature"
    return "to be split"


def kinds() -> Mapping[str, int]:
    """How many functions of each kind are beyond a limit."""
    large, found = large_functions(), Counter[str]()
    for file in {file for file, _ in large}:
        for node in ast.walk(ast.parse((Path(house.ROOT) / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_large(node):
                found[kind_of(Path(file), node)] += 1
    return dict(sorted(found.items()))


def is_large(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is beyond a limit."""
    return (node.end_lineno or node.lineno) - node.lineno + 1 > LINES or parameters_of(node) > PARAMETERS


def listed() -> Sizes:
    """What the list allows."""
    rows = [line.split() for line in LIST.read_text(encoding="utf-8").splitlines() if line]
    return {(file, name): (int(lines), int(parameters)) for file, name, lines, parameters in rows}


def text(sizes: Sizes) -> str:
    """The list as a file."""
    rows = [f"{file} {name} {lines} {parameters}" for (file, name), (lines, parameters) in sorted(sizes.items())]
    return "\n".join(rows) + "\n"


def main(words: list[str]) -> None:
    """Command line."""
    now = large_functions()
    if words == ["write"]:
        allowed = listed()
        kept = {at: (min(a, now[at][0]), min(b, now[at][1])) for at, (a, b) in allowed.items() if at in now}
        LIST.write_text(text(kept), encoding="utf-8")
    elif words == ["why"]:
        for kind, count in kinds().items():
            print(f"{count:4} {kind}")
    else:
        print(text(now), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
