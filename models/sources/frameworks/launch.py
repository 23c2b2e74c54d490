r"""This module reads plain launch scripts: the arguments of the training program, with variables and arrays replaced.

    TP=2
    MODEL_ARGS=(
        --tensor-model-parallel-size $TP
        --sequence-parallel
    )
    torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} --micro-batch-size 1

Assignments, arrays and one command with a `.py` file are read, nothing is run.  Whatever else a shell could mean
(conditions, loops, substitution of commands, defaults, arguments of the script) is an error that names the line.  What
stands in front of the program is the launcher's; the machine that is audited says how many devices there are.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

from ...text import InputError

_ASSIGNED: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_ARRAY: Final = re.compile(r"([A-Za-z_]\w*)=\((.*)\)", re.ASCII | re.DOTALL)
_NAME: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(\[[@*]\])?\}|([A-Za-z_]\w*))", re.ASCII)
_WHOLE: Final = re.compile(r'"\$\{([A-Za-z_]\w*)(\[@\])()\}"', re.ASCII)
_PROGRAM: Final = re.compile(r"[\w./-]*\.py", re.ASCII)
_IDLE: Final = re.compile(r"(set [-+]\w+( pipefail)?|(cd|mkdir|echo|module|ulimit|umask)\b[^;&|`$(]*)", re.ASCII)
_SHELL: Final = re.compile(r"[$`;|&<>(){}\[\]*?~!\\]")
"""What means something to a shell, beside quotes and variables; inside quotes too, so that nothing is read wrongly."""

_LITERAL: Final = re.compile(
    r"'[^']*\$[^']*'|\"[^\"]*\$\{\w+\[\*\]\}[^\"]*\"|\"[^\"]+\$\{\w+\[@\]\}|\$\{\w+\[@\]\}[^\"\s]"
)
"""Dollars that are no variables, and arrays in one word with something else."""

MOST_EXPANDED: Final = 1 << 18
"""Characters of arguments: variables in variables grow fast."""


@dataclass(frozen=True)
class Launched:
    """`arguments` of the training program, quoted; `others`: what stands before it, and variables nobody reads."""

    arguments: str
    others: tuple[str, ...]


def launched(text: str) -> Launched:
    """What a script starts.  Raises `InputError` for a script that cannot be read so.

    >>> launched("N=4\\nA=(--tensor-model-parallel-size $N)\\ntorchrun pretrain_gpt.py ${A[@]} --bf16")
    Launched(arguments='--tensor-model-parallel-size 4 --bf16', others=('torchrun',))
    """
    known: dict[str, list[str]] = {}
    used: set[str] = set()
    found: tuple[list[str], str] | None = None
    for number, line in _commands(text):
        place = f"line {number}: {line.splitlines()[0][:60]!r}"
        if (array := _ARRAY.fullmatch(line)) is not None:
            known[array[1]] = _words(array[2], known, used, place)
        elif (assigned := _ASSIGNED.fullmatch(line)) is not None and len(_split(assigned[2], place)) <= 1:
            known[assigned[1]] = [" ".join(_words(assigned[2], known, used, place))]
            if assigned[2][:1].isspace():
                raise _refusal(f"{place} has a space behind its =")
        elif _IDLE.fullmatch(line) is None:
            words = _words(line, known, used, place)
            program = next((k for k, w in enumerate(words) if _PROGRAM.fullmatch(w)), None)
            if program is None:
                raise _refusal(f"{place} is neither an assignment nor the command of a .py file")
            if found is not None:
                raise _refusal(f"{place} is a second command of a .py file; give the arguments of one")
            found = words[program + 1 :], shlex.join(words[:program])
    if found is None:
        raise _refusal("there is no command of a .py file")
    idle = tuple(f"{name}={' '.join(value)}" for name, value in known.items() if name not in used)
    return Launched(shlex.join(found[0]), (found[1], *idle))


def _commands(text: str) -> list[tuple[int, str]]:
    """Commands with the numbers of their lines: continued lines are joined, arrays end at their bracket."""
    out: list[tuple[int, str]] = []
    held, begun, inside = "", 0, False
    for number, line in enumerate(text.splitlines(), 1):
        bare = _uncommented(line)
        if not held:
            begun = number
        held += bare.removesuffix("\\") + ("\n" if inside or bare.endswith("\\") else "")
        inside = inside or re.match(r"\s*[A-Za-z_]\w*=\((?!.*\)\s*$)", bare) is not None
        if inside and bare.rstrip().endswith(")"):
            inside = False
        if not inside and not bare.endswith("\\"):
            if held.strip():
                out.append((begun, held.strip()))
            held = ""
    if held.strip():
        out.append((begun, held.strip()))
    return out


def _uncommented(line: str) -> str:
    """A line without its comment: a `#` at its beginning or behind a space, outside quotes."""
    quote = ""
    for k, c in enumerate(line):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c == "#" and (k == 0 or line[k - 1].isspace() or line[k - 1] == "("):
            return line[:k].rstrip()
    return line.rstrip()


def _split(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise _refusal(f"{place} cannot be split: {error}") from None


def _words(text: str, known: dict[str, list[str]], used: set[str], place: str) -> list[str]:
    """Words of a command after expansion.  Unquoted variables split into words, as a shell has it."""
    if _LITERAL.search(text) is not None or _SHELL.search(_NAME.sub("", text)) is not None:
        raise _refusal(f"{place} holds more of the shell than variables and arrays")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name not in known:
            raise _refusal(f"{place}: nothing says what ${name} is")
        if len(known[name]) > 1 and not match[2]:
            raise _refusal(f"{place}: ${name} is an array; write ${{{name}[@]}}")
        if any("'" in word or '"' in word for word in known[name]):
            raise _refusal(f"{place}: ${name} has quotes in its value")
        used.add(name)
        kept = match[0].startswith('"')  # one word for each of the array; else all are split again
        return " ".join(f'"{word}"' if kept else word for word in known[name])

    whole = _NAME.sub(value, _WHOLE.sub(value, text))
    if len(whole) > MOST_EXPANDED:
        raise _refusal(f"{place} grows too long")
    return _split(whole, place)


def _refusal(why: str) -> InputError:
    return InputError(
        f"is a launch script that cannot be read without running it: {why}; give the arguments of its program as a "
        "file, variables and arrays replaced by their values: --tensor-model-parallel-size 2 --sequence-parallel .."
    )
