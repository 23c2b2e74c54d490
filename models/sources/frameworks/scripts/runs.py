r"""Follows a script to the command of its program, under each answer to what only who starts the script knows.

    if [ -n "$WANDB_API_KEY" ]; then ARGS+=(--wandb-project x); fi         both ways are followed, and both are given
    for A in "$@"; do .. done    while [ $# -gt 0 ]; do .. done            a script that is given has no arguments
    [ -z "$DATA" ] && exit 1     if ! command -v srun; then exit 1; fi     a script that ends starts nothing: not taken

Commands that set nothing and start no program (`mkdir`, `echo`, `cat <<EOF`) are passed over.  A file that is read in
(`. env.sh`) may set everything: what was known before it is not known behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ....text import InputError
from .commands import ASKS, DECLARES, ENDS, IDLE, PASSES, SHELLS, SHOWS, TRAINERS, UNSURE, is_idle_python, known_batch
from .conditions import decide, matches
from .expansions import Shell, Value
from .parts import Array, Chain, Choice, Command, Function, Loop, Node, Not, parts_of
from .quotes import Unread

MOST_WAYS: Final = 64
"""Ways through a script that are followed: conditions that only who starts it knows double them."""

MOST_TURNS: Final = 256
"""Turns of loops on one way, and commands in commands (`eval`) at most."""

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_ELEMENT: Final = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\]\+?=.*", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Doubt:
    """A condition that only who starts the script knows, and whether it was taken to hold."""

    line: int
    text: str
    holds: bool


@dataclass(frozen=True)
class Way:
    """One way through a script: words of the command that starts the program, what else it set, what it took."""

    words: tuple[str, ...]
    idle: tuple[str, ...]
    defaults: tuple[str, ...]
    doubts: tuple[Doubt, ...]


Starts = Callable[[Value], bool]
"""Whether words start a program of a framework."""


class _Exit(Exception):
    """The script has ended."""


def ways_of(text: str, starts: Starts) -> tuple[Way, ...]:
    """The ways through a script that start a program, the first with every condition in doubt not holding.

    Raises `InputError` for a script that cannot be followed, or that starts none.
    """
    try:
        nodes = parts_of(text)
        batch = known_batch(text)
        ways: list[Way] = []
        pending: list[tuple[bool, ...]] = [()]
        failed: InputError | None = None
        others: list[str] = []
        while pending:
            if len(ways) + len(pending) > MOST_WAYS:
                raise Unread(f"more than {MOST_WAYS} ways through it that only who starts the script knows")
            run = _Run(starts, pending.pop(), Shell(known=dict(batch)))
            try:
                way = run.follow(nodes)
            except InputError as error:
                failed, way = failed or error, None
                if not run.doubts:
                    raise
            pending += [(*(d.holds for d in run.doubts[:k]), True) for k in range(len(run.answers), len(run.doubts))]
            others += run.scripts
            ways += [] if way is None else [way]
    except RecursionError:
        raise Unread("commands in commands without end") from None
    if failed is not None:
        raise failed
    if not ways:
        raise Unread(others[0] if others else "there is no command of a .py file")
    return tuple(ways)


@dataclass
class _Run:
    """One way: `answers` to the first conditions in doubt, those behind them are taken not to hold."""

    starts: Starts
    answers: tuple[bool, ...]
    shell: Shell
    found: Value | None = None
    functions: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    turns: int = 0
    place: str = ""
    inside: int = 0

    def follow(self, nodes: tuple[Node, ...]) -> Way | None:
        try:
            self.run(nodes)
        except _Exit:
            pass
        except Unread as error:
            raise Unread(
                f"{self.place} {error}" if self.place and not str(error).startswith("line ") else str(error)
            ) from None
        if self.found is None:
            return None
        shell = self.shell
        idle = tuple(f"{name}={' '.join(v)}" for name, v in shell.known.items() if name not in shell.used)
        return Way(tuple(self.found), idle, tuple(dict.fromkeys(shell.defaults)), tuple(self.doubts))

    def run(self, nodes: tuple[Node, ...]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            status = self.one(node)
        return status

    def one(self, node: Node) -> bool | None:
        match node:
            case Command():
                return self.command(node)
            case Chain(parts):
                return self.chain(parts)
            case Not(inner):
                found = self.one(inner)
                return None if found is None else not found
            case Choice():
                return self.choice(node)
            case Loop():
                return self.loop(node)
            case Function(name, body) if name:
                self.functions[name] = body
                return True
            case Function(_, body):
                return self.run(body)

    def chain(self, parts: tuple[tuple[str, Node], ...]) -> bool | None:
        status: bool | None = True
        for sign, node in parts:
            if sign == "" or (status is not None and status == (sign == "&&")):
                status = self.one(node)
            elif status is None and not _ends((node,)) and not self.harmless((node,)):
                line, text = _begins(node)
                if self.doubt(line, text, (node,)):
                    status = self.one(node)
        return status

    def doubt(self, line: int, text: str, body: tuple[Node, ...]) -> bool:
        """Whether a condition that is not known is taken to hold; it is followed both ways where that matters."""
        if _ends(body) or self.harmless(body):
            return False
        holds = self.answers[len(self.doubts)] if len(self.doubts) < len(self.answers) else False
        self.doubts.append(Doubt(line, text, holds))
        return holds

    def choice(self, node: Choice) -> bool | None:
        branches = node.branches
        for k, (test, body) in enumerate(branches):
            if node.word:
                found = matches(self.shell, node.word, test)  # type: ignore[arg-type]
            else:
                found = self.run(test)  # type: ignore[arg-type]
            rest = [b for _, b in branches[k + 1 :]] + ([node.other] if node.other else [])
            if found is None and rest and all(map(_ends, rest)) and not _ends(body):
                found = True  # whatever else it says, nothing is started
            if found and not node.word and _ends(body) and self.is_wanted(test):  # type: ignore[arg-type]
                continue
            if found is None:
                found = self.doubt(node.line, node.text if k == 0 else f"{node.text}, branch {k + 1}", body)
            if found:
                return self.run(body)
        return self.run(node.other)

    def is_wanted(self, test: tuple[Node, ...]) -> bool:
        """Whether a script ends for want of a variable that is empty by default: who starts it has to set it."""
        names = {n for text in _texts(test) for n in re.findall(r"[A-Za-z_]\w*", text, re.ASCII)} & self.shell.empty
        for name in names:
            self.shell.forget(name)
        return bool(names)

    def loop(self, node: Loop) -> bool | None:
        if node.test or not node.name:
            held = None if not node.test else self.quiet(node.test)
            asks = re.search(r"\$[#@1]|\$\{[#1]|getopts|shift", " ".join(_texts(node.test)))
            if asks is not None:
                self.shell.defaults.append("arguments of the script: none")
            elif held is not False and not self.harmless(node.body):
                raise Unread(f"line {node.line}: {node.text} runs as often as only a shell can say")
            return True
        words = [w for item in node.items for w in self.shell.words(item)]
        if any("$" in w for w in words):
            if not self.harmless(node.body):
                raise Unread(f"line {node.line}: {node.text} runs over what only who starts the script knows")
            return True
        for word in words:
            self.turns += 1
            if self.turns > MOST_TURNS:
                raise Unread(f"line {node.line}: {node.text} runs more than {MOST_TURNS} times")
            self.shell.assign(node.name, [word], array=False, added=False)
            self.shell.used.add(node.name)
            self.run(node.body)
        return True

    def quiet(self, nodes: tuple[Node, ...]) -> bool | None:
        """What a condition says, of one that starts nothing."""
        return (
            self.run(nodes)
            if all(isinstance(n, Command) and n.tokens[:1] and n.tokens[0] in ASKS for n in nodes)
            else None
        )

    def harmless(self, body: tuple[Node, ...]) -> bool:
        """Whether commands set nothing and start nothing."""
        for node in body:
            match node:
                case Command(tokens=tokens):
                    first = tokens[0] if tokens else ""
                    if not isinstance(first, str) or not (first in IDLE or first in ASKS or first in ENDS):
                        return False
                    if first == "exec" and len(tokens) > 1:
                        return False
                case Chain(parts):
                    if not self.harmless(tuple(n for _, n in parts)):
                        return False
                case Choice(branches=branches, other=other, word=word):
                    tests = [] if word else [t for t, _ in branches]
                    if not all(self.harmless(b) for b in (*(b for _, b in branches), other, *tests)):  # type: ignore[arg-type]
                        return False
                case Loop(test=test, body=inner) | Function(body=inner, name=test):
                    if isinstance(test, str) and test:
                        return False
                    if not self.harmless(inner):
                        return False
                case Not(inner_node):
                    if not self.harmless((inner_node,)):
                        return False
        return True

    def command(self, node: Command) -> bool | None:
        if not self.inside:
            self.place = f"line {node.line}: {node.text.splitlines()[0][:60]!r}"
        tokens = node.tokens
        if not tokens:
            return True
        first = tokens[0]
        if isinstance(first, str) and (first in ASKS or first.startswith("((")):
            return decide(self.shell, tuple(t for t in tokens if isinstance(t, str)))
        declares = isinstance(first, str) and first in DECLARES
        rest = tokens[1:] if declares else tokens
        set_here = [isinstance(t, Array) or bool(_ASSIGNED.fullmatch(t) or _ELEMENT.fullmatch(t)) for t in rest]
        if all(set_here) or declares:
            if not all(self.assign_word(token, declares) for token in rest):
                raise Unread(f"{self.place} holds more of the shell than variables and arrays")
            ran = any(isinstance(t, str) and ("$(" in t.replace("$((", "") or "`" in t) for t in tokens)
            return None if ran else True
        words: Value = []
        for token in rest:
            if isinstance(token, Array):
                raise Unread(f"{self.place} holds more of the shell than variables and arrays")
            words += ["|"] if token == "|" else self.shell.words(token)
        return self.start(words, node)

    def assign_word(self, token: str | Array, declares: bool) -> bool:
        """Whether a word is an assignment, which is made."""
        if isinstance(token, Array):
            values = [w for item in token.items for w in self.shell.words(item)]
            self.shell.assign(token.name, values, array=True, added=token.added)
            return True
        if declares and re.search(r"=[^'\"]*\{[^{}]*(,|\.\.)", token) is not None:
            return False
        if (found := _ASSIGNED.fullmatch(token)) is not None:
            self.shell.assign(found[1], [self.shell.value(found[3])], array=False, added=bool(found[2]))
            return True
        if (element := _ELEMENT.fullmatch(token)) is not None:
            self.shell.forget(element[1])
            return True
        return declares and re.fullmatch(r"-\w+|[A-Za-z_]\w*", token, re.ASCII) is not None

    def start(self, words: Value, node: Command) -> bool | None:
        """A command: the program, one that is followed, or one that is passed over."""
        begun = next((k for k, word in enumerate(words) if not _ASSIGNED.fullmatch(word)), 0)
        front, words = words[:begun], words[begun:]  # A=1 command: A is the command's alone
        if not words or not words[0]:
            raise Unread(f"{self.place} holds more of the shell than variables and arrays")
        for k, word in enumerate(words):
            if word == "eval" and all(w in PASSES for w in words[:k]):
                return self.again(" ".join(words[k + 1 :]))
        parts: list[Value] = [[]]
        for word in words:
            if word == "|":
                parts.append([])
            else:
                parts[-1].append(word)
        for k, part in enumerate(parts):
            if part and part[0] not in SHOWS and self.starts(part):
                if (
                    other := next((p for p in (*parts[:k], *parts[k + 1 :]) if not p or p[0] not in IDLE), None)
                ) is not None:
                    raise Unread(f"{self.place}: {' '.join(other)[:40]!r} is no command that output goes to")
                if self.found is not None:
                    raise Unread(f"{self.place} is a second command of a .py file; give the arguments of one")
                self.found = [*front, *part]
                return True
        if not all(parts):
            raise Unread(f"{self.place} holds more of the shell than variables and arrays")
        words = parts[0]
        while words and words[0] in PASSES and len(words) > 1:
            words = words[1:]
        name = words[0] if words else ""
        for k, word in enumerate(words[:-1]):
            if word in ("-c", "-lc", "-xc", "-ic") and any(
                w.rpartition("/")[2] in ("sh", "bash", "zsh") for w in words[:k]
            ):
                return self.inner(words[: k - 1], words[k + 1])
        if name in self.functions:
            return self.call(name)
        if name in (".", "source"):
            if not re.search(r"activate|bashrc|profile|setvars", words[1] if len(words) > 1 else ""):
                self.shell.known = {name: v for name, v in self.shell.known.items() if name.startswith("SLURM_")}
                self.shell.arrays.clear()
            return True
        if name in ("read", "getopts", "unset", "mapfile", "readarray"):
            for word in words[1:]:
                self.shell.forget(word)
            return None if name == "getopts" else True
        if name in ENDS:
            raise _Exit
        if name.endswith(".sh") or (name in SHELLS and len(words) > 1 and not words[1].startswith("-")):
            self.scripts.append(f"{self.place} starts another script; give that one")
            return True  # which sets nothing here
        if name == "" or name in IDLE or name in ASKS or is_idle_python(words):
            return None if name in UNSURE else name != "false"
        if name in TRAINERS:
            raise Unread(f"{self.place} takes a YAML; give that file as the strategy")
        raise Unread(f"{self.place} is neither an assignment nor the command of a .py file")

    def inner(self, front: Value, text: str) -> bool | None:
        """`srun .. bash -c TEXT`: what it starts is started by what stands before the shell."""
        before = self.found
        status = self.again(text)
        if self.found is not None and self.found is not before:
            self.found = [*front, *self.found]
        return status

    def again(self, text: str) -> bool | None:
        """A command in a word; what is left open in it was open where the word was made."""
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Unread("commands in commands without end")
        shell = self.shell
        self.shell, self.inside = Shell(used=shell.used, defaults=shell.defaults), self.inside + 1
        try:
            return self.run(parts_of(text))
        finally:
            self.shell, self.inside = shell, self.inside - 1

    def call(self, name: str) -> bool | None:
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Unread("functions in functions without end")
        try:
            return self.run(self.functions[name])
        except _Exit:
            if not _ends(self.functions[name]):
                raise
            return True


def _ends(body: tuple[Node, ...]) -> bool:
    """Whether a body ends the script."""
    for node in body:
        if isinstance(node, Command) and node.tokens[:1] == ("exit",):
            return True
        if isinstance(node, Function) and not node.name and _ends(node.body):
            return True
    return False


def _begins(node: Node) -> tuple[int, str]:
    match node:
        case Command(line=line, text=text) | Choice(line=line, text=text) | Loop(line=line, text=text):
            return line, repr(text.splitlines()[0][:60]) if isinstance(node, Command) else text
        case Not(inner):
            return _begins(inner)
        case Chain(parts):
            return _begins(parts[0][1])
        case Function(body=body):
            return _begins(body[0]) if body else (0, "a function")


def _texts(nodes: tuple[Node, ...]) -> Iterable[str]:
    for node in nodes:
        match node:
            case Command(text=text):
                yield text
            case Not(inner):
                yield from _texts((inner,))
            case Chain(parts):
                yield from _texts(tuple(n for _, n in parts))
