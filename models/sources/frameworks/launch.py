r"""Plain launch scripts: the arguments of the program that they start, with variables and arrays replaced.

    GPUS_PER_NODE=${GPUS_PER_NODE:-8}
    WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
    MODEL_ARGS=(
        --tensor-model-parallel-size 8
        --sequence-parallel
    )
    torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py ${MODEL_ARGS[@]} --save $CHECKPOINT_PATH

Assignments, arrays, defaults, sums of whole numbers and one command with a program are read, nothing is run.  What only
the one who starts the script can say (its arguments, the environment, output of commands) stays `$NAME`: it is no value
of a setting that is read, and the reader of the arguments refuses it there.  A default counts where nothing else is
said, and is listed.  Whatever else a shell could mean (conditions, loops, functions) is an error that names the line.
What stands in front of the program is the launcher's: as many processes as it says have to be the machine's devices.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ...text import InputError
from .words import WordError

_ASSIGNED: Final = re.compile(r"(?:export\s+|declare\s+|local\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_ARRAY: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=\((.*)\)", re.ASCII | re.DOTALL)
_NAME: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(\[[@*]\])?\}|([A-Za-z_]\w*)|\{?([0-9@*#?])\}?)", re.ASCII)
_DEFAULT: Final = re.compile(r"\$\{([A-Za-z_]\w*|[0-9]):?-([^{}$`\"'\\]*)\}", re.ASCII)
_SUM: Final = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)", re.ASCII)
_RUN: Final = re.compile(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`", re.ASCII)
_WHOLE: Final = re.compile(r'"\$\{([A-Za-z_]\w*)(\[@\])()()\}"', re.ASCII)
_PROGRAM: Final = re.compile(r"[\w./-]*\.py", re.ASCII)
_PYTHON: Final = re.compile(r"([\w.$/{}-]*/)?(python[\d.]*|torchrun|launch)", re.ASCII)
_MODULES: Final = re.compile(r"torch\.distributed\.(run|launch)|accelerate\.commands\.launch", re.ASCII)
_IDLE: Final = re.compile(
    r"(set [-+]\w+( pipefail)?|(cd|mkdir|echo|module|ulimit|umask|sleep|wait|unset|conda|pip|nvidia-smi|pushd|popd"
    r"|hostname|date|ls|env|which|exit|export [A-Za-z_]\w*$)\b[^;&|`$(]*)",
    re.ASCII,
)
_SHELL: Final = re.compile(r"[$`;|&<>(){}\[\]*?~!\\]")
"""What means something to a shell, beside quotes and variables; inside quotes too, so that nothing is read wrongly."""

_LITERAL: Final = re.compile(
    r"'[^']*\$[^']*'|\"[^\"]*\$\{\w+\[\*\]\}[^\"]*\"|\"[^\"]+\$\{\w+\[@\]\}|\$\{\w+\[@\]\}[^\"\s]"
)
"""Dollars that are no variables, and arrays in one word with something else."""

_TAIL: Final = re.compile(r"\s(?:(?:[12]?>>?|&>>?)\s*(?:&[12]|[\w./${}-]+)|\|&?\s*tee\b[^|;&<>()`]*|&\s*$)")
"""Where output goes, behind the arguments."""

_ACCELERATE: Final = frozenset(
    {"--num_processes", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port", "--multi_gpu"}
    | {"--rdzv_backend", "--rdzv_conf", "--same_network", "--num_cpu_threads_per_process", "--gpu_ids", "--module"}
)
"""Flags of `accelerate launch` that say where processes run and nothing of a step."""

MOST_EXPANDED: Final = 1 << 18
"""Characters of arguments: variables in variables grow fast."""


@dataclass(frozen=True)
class Launched:
    """`arguments` of the training program, quoted; `others`: what stands before it, defaults, and variables nobody
    reads; `program`: its file or module; `devices`: processes that the launcher starts, 0 where it does not say.
    """

    arguments: str
    others: tuple[str, ...]
    program: str = ""
    devices: int = 0


@dataclass
class _Shell:
    """Variables so far, in words; those that were used; and those whose default counted."""

    known: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    defaults: list[str] = field(default_factory=list)


def read_launch(text: str) -> Launched:
    """What a script starts.  Raises `InputError` for a script that cannot be read so.

    >>> found = read_launch("N=${N:-4}\\nA=(--tensor-model-parallel-size $N)\\ntorchrun pretrain_gpt.py ${A[@]} --bf16")
    >>> found.arguments, found.others
    ('--tensor-model-parallel-size 4 --bf16', ('torchrun', 'N=4 by default'))
    """
    shell = _Shell()
    found: tuple[list[str], list[str], str] | None = None
    for number, line in _commands(text):
        place = f"line {number}: {line.splitlines()[0][:60]!r}"
        if (array := _ARRAY.fullmatch(line)) is not None:
            before = shell.known.get(array[1], []) if array[2] else []
            shell.known[array[1]] = [*before, *_words(array[3], shell, place)]
        elif (assigned := _ASSIGNED.fullmatch(line)) is not None and _is_one_word(assigned[3]):
            name, value = assigned[1], _assigned(assigned[3], shell, place)
            if assigned[3][:1].isspace():
                raise _refusal(f"{place} has a space behind its =")
            before = shell.known.get(name, []) if assigned[2] else []
            shell.known[name] = ["".join((*before[:1], value))] if len(before) < 2 else [before[0] + value, *before[1:]]
        elif _IDLE.fullmatch(line) is None:
            tail = _TAIL.search(_quoted_away(line))
            words = _words(line if tail is None else line[: tail.start()], shell, place)
            if tail is not None and _SHELL.search(_TAIL.sub("", _quoted_away(line)[tail.start() :])) is not None:
                raise _refusal(f"{place} holds more of the shell than variables and arrays")
            program = _program(words, place)
            if program is None:
                raise _refusal(f"{place} is neither an assignment nor the command of a .py file")
            if found is not None:
                raise _refusal(f"{place} is a second command of a .py file; give the arguments of one")
            found = words[program[1] :], words[: program[0]], words[program[0]]
    if found is None:
        raise _refusal("there is no command of a .py file")
    idle = tuple(f"{name}={' '.join(value)}" for name, value in shell.known.items() if name not in shell.used)
    defaults = tuple(dict.fromkeys(shell.defaults))
    front = (shlex.join(found[1]),) if found[1] else ()
    return Launched(shlex.join(found[0]), (*front, *defaults, *idle), found[2], _processes(found[1]))


def _processes(words: list[str]) -> int:
    """Processes that a launcher starts on all nodes, 0 where it does not say: torchrun takes one node where none is
    said, deepspeed those of its hostfile, accelerate counts the processes of all.

    >>> _processes("torchrun --nproc_per_node 8 --nnodes=2".split()), _processes("deepspeed --num_gpus 8".split())
    (16, 0)
    """
    said = {}
    for word, after in zip(words, (words + [""])[1:], strict=True):
        name, equals, value = word.partition("=")
        said[name.lstrip("-").replace("-", "_")] = value if equals else after

    def count(name: str) -> int:
        text = said.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0

    if any(w.rpartition("/")[2] == "accelerate" for w in words):
        return count("num_processes")
    if any(w.rpartition("/")[2] == "deepspeed" for w in words):
        return count("num_gpus") * count("num_nodes")
    return count("nproc_per_node") * (count("nnodes") if "nnodes" in said else 1)


def _program(words: list[str], place: str) -> tuple[int, int] | None:
    """Where the program stands among the words, and where its arguments begin; None if none is known."""
    for k, word in enumerate(words):
        if word == "vllm" and words[k + 1 : k + 2] == ["serve"]:
            model = words[k + 2 : k + 3]
            return k, k + 3 if model and not model[0].startswith("-") else k + 2
        module = words[k + 1] if word == "-m" and k + 1 < len(words) else ""
        if module and _MODULES.fullmatch(module) is None and any(_PYTHON.fullmatch(w) for w in words[:k]):
            _launcher(words[:k], place)
            return k + 1, k + 2
        if _PROGRAM.fullmatch(word):
            _launcher(words[:k], place)
            return k, k + 1
    return None


def _launcher(words: list[str], place: str) -> None:
    """Settings that a launcher is given are settings too: of accelerate's, which a file of its own says."""
    if not any(w.rpartition("/")[2] == "accelerate" for w in words):
        return
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name.replace("-", "_").replace("__", "--", 1) not in _ACCELERATE:
            raise _refusal(
                f"{place}: {name} of accelerate launch says how the step is spread; give accelerate's YAML with it as "
                "the strategy, batch and types written into it"
            )


def _is_one_word(value: str) -> bool:
    """Whether the right side of an assignment ends with it, and no command follows."""
    bare = _RUN.sub("x", _SUM.sub("x", value))
    bare = re.sub(r"\"[^\"]*\"|'[^']*'|\$\{[^}]*\}", "x", bare, flags=re.DOTALL)
    return re.search(r"\S\s+\S", bare.strip()) is None


def _assigned(value: str, shell: _Shell, place: str) -> str:
    """The value of an assignment, which no shell splits.  What is run to know it stays unknown."""
    inner = _SUM.sub(lambda m: _sum(m[1], shell, place), value)
    if _RUN.search(inner) is not None:
        return "$(..)"
    return " ".join(_words(inner, shell, place))


_STEPS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
}


def _sum(text: str, shell: _Shell, place: str) -> str:
    """`$((A * 8))` of variables that are known; unknown as a whole where one is not."""

    def value(match: re.Match[str]) -> str:
        name = match[0].strip("${}")
        shell.used.add(name)
        return " ".join(shell.known.get(name, ["?"]))

    filled = re.sub(r"\$\{[A-Za-z_]\w*\}|\$?[A-Za-z_]\w*", value, text, flags=re.ASCII)
    if "?" in filled or "$" in filled:
        return "$(..)"
    try:
        return str(_number(ast.parse(filled.strip().replace("/", "//")[:400], mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
        raise _refusal(f"{place}: $(({text[:40]})) is no sum of whole numbers") from None


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(n)) if not isinstance(n, bool) and abs(n) < 1 << 62:
            return n
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner)
        case ast.BinOp(left=left, op=step, right=right) if type(step) in _STEPS:
            found = _STEPS[type(step)](_number(left), _number(right))
            if abs(found) < 1 << 62:
                return found
    raise ValueError("no sum of whole numbers")


def _quoted_away(line: str) -> str:
    """The line with what stands in quotes as blanks, every character at its place."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", lambda m: "_" * len(m[0]), line, flags=re.DOTALL)


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Commands with the numbers of their lines.  A command ends with its line, but for a backslash at the end of it, a
    quote that is open, and an array until its bracket.
    """
    held: list[str] = []
    quote, inside, number, begun, last = "", 0, 1, 1, ""
    at = 0
    while at < len(text):
        c = text[at]
        if not held:
            if c.isspace():
                number, at, last = number + (c == "\n"), at + 1, c
                continue
            begun = number
        if text.startswith("\\\n", at) and quote != "'":
            number, at = number + 1, at + 2
            continue
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c == "#" and (not last or last.isspace() or last == "("):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        elif c == "(" and last == "=" and re.fullmatch(r"\s*[A-Za-z_]\w*\+?=", "".join(held[-80:]), re.ASCII):
            inside = 1
        elif inside and c in "()":
            inside += 1 if c == "(" else -1
        if c == "\n":
            number += 1
            if not quote and not inside:
                if line := "".join(held).strip():
                    yield begun, line
                held, last, at = [], c, at + 1
                continue
        held.append(c)
        last, at = c, at + 1
    if line := "".join(held).strip():
        yield begun, line


def _split(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise _refusal(f"{place} cannot be split: {error}") from None


def _words(text: str, shell: _Shell, place: str) -> list[str]:
    """Words of a command after expansion.  Unquoted variables split into words, as a shell has it."""

    def default(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if any(shell.known.get(name, [])) or (name in shell.known and ":-" not in match[0]):
            return f"${{{name}}}"
        shell.defaults.append(f"{name}={value} by default")
        return value

    if _SUM.search(text) is not None:
        text = _SUM.sub(lambda m: _sum(m[1], shell, place), text)
    text = _RUN.sub("$__run", text)
    text = _DEFAULT.sub(default, text)
    if _LITERAL.search(text) is not None or _SHELL.search(_NAME.sub("", text)) is not None:
        raise _refusal(f"{place} holds more of the shell than variables and arrays")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4]
        if name in ("@", "*"):  # a script that is given as it is has no arguments
            shell.defaults.append("arguments of the script: none")
            return ""
        if name not in shell.known:
            return match[0]
        if len(shell.known[name]) > 1 and not match[2]:
            raise _refusal(f"{place}: ${name} is an array; write ${{{name}[@]}}")
        if any("'" in word or '"' in word for word in shell.known[name]):
            raise _refusal(f"{place}: ${name} has quotes in its value")
        shell.used.add(name)
        kept = match[0].startswith('"')  # one word for each of the array; else all are split again
        return " ".join(f'"{word}"' if kept else word for word in shell.known[name])

    whole = _NAME.sub(value, _WHOLE.sub(value, text.replace('"$@"', "$@")))
    if len(whole) > MOST_EXPANDED:
        raise _refusal(f"{place} grows too long")
    return _split(whole, place)


def _refusal(why: str) -> InputError:
    return InputError(
        f"is a launch script that cannot be read without running it: {why}; give the arguments of its program as a "
        "file, variables and arrays replaced by their values: --tensor-model-parallel-size 2 --sequence-parallel .."
    )


def unknown_value(framework: str, name: str, value: str) -> InputError:
    """The error of a setting whose value only who starts the script knows."""
    return WordError(framework, name, f"{name} {value[:60]} is a variable of the shell; write its value")
