"""Functions that are longer than a screen, or take more than eight parameters: a list that only gets shorter.

    python tests/function_sizes.py          what there is now, in the form of `sizes.txt`
    python tests/function_sizes.py write    takes out what is short now, and lowers what got shorter; adds nothing

A line is the file, the function, its lines (docstring included; 0: at most 60) and its parameters (0: at most 8).  What
is left is copied into exported files as it is: PyTorch calls it with what a loss is given.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import house

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
    else:
        print(text(now), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
