r"""Takes a script of a shell apart: commands with their words as they are written, conditions, loops, functions.

    if [ -n "$A" ]; then X+=(--b); elif ..; else ..; fi     case W in a|b) .. ;; esac     for X in ..; do ..; done
    A && B || C     f() { ..; }     ( .. )     cat <<EOF > file

Nothing is expanded or run here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .quotes import Unread, end_of, end_of_bracket

_NAMED: Final = re.compile(r"[A-Za-z_]\w*\+?=\Z", re.ASCII)
_FUNCTION: Final = re.compile(
    r"(?:function[ \t]+)?([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)\s*(?=[{(])|function[ \t]+([\w-]+)\s*(?=\{)", re.ASCII
)
_BLANK: Final = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_SPACE: Final = re.compile(r"(?:[ \t\r\n&]|(?<!;);(?!;)|\\\r?\n|#[^\n]*)+")
_KEYWORD: Final = re.compile(
    r"(?:if|then|elif|else|fi|for|while|until|do|done|case|esac|in|function|\{|\}|!)(?=[\s;)(]|\Z)"
)
_TURNED: Final = re.compile(r"(?:\d*(?:<<<|<<-?|<&|>&|<>|>>|>\||<|>)|&>>?)")
_HERE: Final = re.compile(r"\d*<<-?")
_LETTERS: Final = re.compile(r"[\w./:=,@%+^~*?\[\]-]+", re.ASCII)


@dataclass(frozen=True)
class Array:
    """`NAME=(items)`, or added to it (`NAME+=(..)`)."""

    name: str
    added: bool
    items: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """One command with the line that it begins at: its words as written, `|` where output goes on, and arrays."""

    line: int
    tokens: tuple[str | Array, ...]
    text: str


@dataclass(frozen=True)
class Chain:
    """`A && B || C`: every command with what stands before it."""

    parts: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Choice:
    """`if` (conditions with their bodies) or `case` (patterns of a word with theirs); `other` is the body of `else`."""

    line: int
    text: str
    word: str
    branches: tuple[tuple[tuple[Node, ...] | tuple[str, ...], tuple[Node, ...]], ...]
    other: tuple[Node, ...]


@dataclass(frozen=True)
class Loop:
    """`for name in items`, or while (`name` empty) a condition holds."""

    line: int
    text: str
    name: str
    items: tuple[str, ...]
    test: tuple[Node, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Function:
    """A function that is defined; `name` empty: commands in brackets, which are run where they stand."""

    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Not:
    """The opposite of what a command says."""

    node: Node


Node = Command | Chain | Choice | Loop | Function | Not


def parts_of(text: str) -> tuple[Node, ...]:
    """The parts of a script.  Raises `Unread` for what no shell takes, and `RecursionError` where it is too deep."""
    reader = _Reader(text)
    found = reader.read_list(())
    if reader.at < len(text):
        raise Unread(f"line {reader.line(reader.at)}: {text[reader.at :].splitlines()[0][:60]!r} closes nothing")
    return found


@dataclass
class _Reader:
    text: str
    at: int = 0
    waiting: list[str] = field(default_factory=list)
    counted: tuple[int, int] = (0, 1)

    def line(self, at: int) -> int:
        """The line of a place; places are asked for in their order."""
        before, number = self.counted if self.counted[0] <= at else (0, 1)
        number += self.text.count("\n", before, at)
        self.counted = at, number
        return number

    def skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return
        begun, self.at = self.at, found.end()
        if self.waiting and (newline := self.text.find("\n", begun, self.at)) >= 0:
            self.at = newline + 1
            self._past_documents()
            self.skip(pattern)

    def _past_documents(self) -> None:
        """Behind the texts that stand below a command (`<<EOF`)."""
        for mark in self.waiting:
            found = re.compile(rf"^[\t]*{re.escape(mark)}[ \t\r]*$", re.MULTILINE).search(self.text, self.at)
            if found is None:
                raise Unread(f"a text that {mark[:40]} does not end")
            self.at = min(found.end() + 1, len(self.text))
        self.waiting.clear()

    def keyword(self) -> str:
        """The keyword that stands here; empty for a command."""
        found = _KEYWORD.match(self.text, self.at)
        return "" if found is None else found[0]

    def read_list(self, stops: tuple[str, ...]) -> tuple[Node, ...]:
        """Commands up to a keyword of `stops`, which is left, or a bracket."""
        out: list[Node] = []
        while True:
            self.skip(_SPACE) if not self.text.startswith(";;", self.at) else None
            if self.at >= len(self.text) or self.text[self.at] == ")" or self.text.startswith(";;", self.at):
                return tuple(out)
            if self.keyword() in stops and self.keyword():
                return tuple(out)
            out.append(self.read_chain())
            self.skip(_BLANK)
            if self.text.startswith(";;", self.at):
                return tuple(out)

    def read_chain(self) -> Node:
        parts: list[tuple[str, Node]] = [("", self.read_one())]
        while True:
            self.skip(_BLANK)
            sign = self.text[self.at : self.at + 2]
            if sign not in ("&&", "||"):
                return parts[0][1] if len(parts) == 1 else Chain(tuple(parts))
            self.at += 2
            self.skip(re.compile(r"(?:[ \t\r\n]|\\\n|#[^\n]*)+"))
            parts.append((sign, self.read_one()))

    def read_one(self) -> Node:
        begun = self.at
        if (named := _FUNCTION.match(self.text, self.at)) is not None:
            self.at = named.end()
            inner = self.read_one()
            return Function(named[1] or named[2], (inner,))
        readers: dict[str, Callable[[int], Node]] = {
            "if": self.read_if,
            "case": self.read_case,
            "for": self.read_for,
            "while": self.read_while,
            "until": self.read_while,
        }
        word = self.keyword()
        if word == "!":
            self.at += 1
            self.skip(_BLANK)
            return Not(self.read_one())
        if word == "{":
            self.at += 1
            body = self.read_list(("}",))
            self.expect("}", begun)
            return self.behind_turns(Function("", body))
        if self.text.startswith("(", self.at) and not self.text.startswith("((", self.at):
            self.at += 1
            body = self.read_list(())
            self.expect(")", begun)
            return self.behind_turns(Function("", body))
        if word in readers:
            self.at += len(word)
            return self.behind_turns(readers[word](begun))
        if word:
            raise Unread(f"line {self.line(begun)}: {word!r} stands where a command does")
        return self.read_command()

    def behind_turns(self, node: Node) -> Node:
        """The same, behind where its output goes."""
        while True:
            self.skip(_BLANK)
            found = _TURNED.match(self.text, self.at)
            if found is None:
                break
            self.turn(found)
        if self.text.startswith("|", self.at) and not self.text.startswith("||", self.at):
            self.at += 1
            self.skip(_BLANK)
            self.read_one()
        return node

    def turn(self, found: re.Match[str]) -> None:
        self.at = found.end()
        self.skip(_BLANK)
        target = self.word()
        if re.search(r"\[[@*]\]|\{[^{}]*(,|\.\.)[^{}]*\}|^$", target) is not None and not found[0].startswith("&"):
            raise Unread(f"line {self.line(self.at)}: {found[0]}{target[:40]} is no one file")
        if _HERE.fullmatch(found[0]) is not None:
            self.waiting.append(re.sub(r"['\"\\]", "", target))

    def expect(self, word: str, begun: int) -> None:
        if not self.text.startswith(word, self.at):
            raise Unread(f"line {self.line(begun)}: {self._shown(begun)} has no {word}")
        self.at += len(word)

    def _shown(self, begun: int) -> str:
        return repr(self.text[begun:].split("\n", 1)[0][:60])

    def read_if(self, begun: int) -> Node:
        line, text = self.line(begun), self._shown(begun)
        branches: list[tuple[tuple[Node, ...] | tuple[str, ...], tuple[Node, ...]]] = []
        while True:
            test = self.read_list(("then",))
            self.expect("then", begun)
            branches.append((test, self.read_list(("elif", "else", "fi"))))
            if self.keyword() != "elif":
                break
            self.at += 4
        other: tuple[Node, ...] = ()
        if self.keyword() == "else":
            self.at += 4
            other = self.read_list(("fi",))
        self.expect("fi", begun)
        return Choice(line, text, "", tuple(branches), other)

    def read_case(self, begun: int) -> Node:
        line, text = self.line(begun), self._shown(begun)
        self.skip(_BLANK)
        word = self.word()
        self.skip(_SPACE)
        self.expect("in", begun)
        branches: list[tuple[tuple[Node, ...] | tuple[str, ...], tuple[Node, ...]]] = []
        while True:
            self.skip(_SPACE)
            if self.keyword() == "esac":
                break
            if self.text.startswith("(", self.at):
                self.at += 1
            patterns = []
            while self.at < len(self.text) and self.text[self.at] != ")":
                self.skip(_BLANK)
                patterns.append(self.word())
                self.skip(_BLANK)
                if self.text.startswith("|", self.at):
                    self.at += 1
            self.expect(")", begun)
            branches.append((tuple(patterns), self.read_list(("esac",))))
            if self.text.startswith(";;", self.at):
                self.at += 2
        self.expect("esac", begun)
        return Choice(line, text, word, tuple(branches), ())

    def read_for(self, begun: int) -> Node:
        line, text = self.line(begun), self._shown(begun)
        self.skip(_BLANK)
        items: list[str] = []
        if self.text.startswith("((", self.at):
            name, self.at = "", end_of_bracket(self.text, self.at)
        else:
            name = self.word()
            self.skip(_SPACE)
            if self.keyword() == "in":
                self.at += 2
                while True:
                    self.skip(_BLANK)
                    if self.at >= len(self.text) or self.text[self.at] in "\n;":
                        break
                    items.append(self.word())
            else:
                items.append('"$@"')
        self.skip(_SPACE)
        self.expect("do", begun)
        body = self.read_list(("done",))
        self.expect("done", begun)
        return Loop(line, text, name, tuple(items), (), body)

    def read_while(self, begun: int) -> Node:
        line, text = self.line(begun), self._shown(begun)
        test = self.read_list(("do",))
        self.expect("do", begun)
        body = self.read_list(("done",))
        self.expect("done", begun)
        return Loop(line, text, "", (), test, body)

    def read_command(self) -> Node:
        begun, tokens = self.at, list[str | Array]()
        if self.text.startswith("((", self.at):
            self.at = end_of_bracket(self.text, self.at)
            tokens.append(self.text[begun : self.at])
        tested = re.compile(r"\[\[(?=\s)").match(self.text, self.at) is not None
        while True:
            self.skip(_BLANK)
            if self.at >= len(self.text):
                break
            c = self.text[self.at]
            if tested and tokens and tokens[-1] == "]]":
                tested = False
            if tested:
                tokens.append(self.test_word())
            elif c in "\n;)" or self.text.startswith(("&&", "||"), self.at):
                break
            elif c == "#":
                self.skip(re.compile(r"#[^\n]*"))
            elif (found := _TURNED.match(self.text, self.at)) is not None:
                self.turn(found)
            elif c == "|":
                self.at += 2 if self.text.startswith("|&", self.at) else 1
                self.skip(re.compile(r"(?:[ \t\r\n]|\\\n)+"))
                tokens.append("|")
            elif c == "&":
                self.at += 1
                break
            else:
                tokens.append(self.token())
        piped = [k for k, token in enumerate(tokens) if token == "|"]
        if self.at == begun or any(k in (0, len(tokens) - 1) or tokens[k - 1] == "|" for k in piped if not tested):
            raise Unread(f"line {self.line(begun)}: {self._shown(begun)} is no command")
        return Command(self.line(begun), tuple(tokens), self.text[begun : self.at])

    def test_word(self) -> str:
        """A word between [[ and ]], where brackets and signs are those of a test."""
        if (sign := re.compile(r"\s*(&&|\|\||[()<>]|\n)").match(self.text, self.at)) is not None:
            self.at = sign.end()
            return sign[1]
        begun = self.at
        if self.text.startswith("]]", begun):
            self.at += 2
        while self.at < len(self.text) and not self.text[self.at].isspace() and not self.text.startswith("]]", begun):
            self.at = end_of(self.text, self.at)
        return self.text[begun : self.at]

    def token(self) -> str | Array:
        """A word, or an array that is assigned."""
        begun = self.at
        word = self.word()
        if _NAMED.match(word) is None or not self.text.startswith("(", self.at):
            if self.at == begun:
                raise Unread(f"line {self.line(begun)}: {self._shown(begun)} holds more of the shell than is read")
            return word
        self.at += 1
        items: list[str] = []
        while True:
            self.skip(re.compile(r"(?:[ \t\r\n]|\\\n|#[^\n]*)+"))
            if self.at >= len(self.text):
                raise Unread(f"line {self.line(begun)}: {self._shown(begun)} has no )")
            if self.text[self.at] == ")":
                self.at += 1
                return Array(word.rstrip("+="), word.endswith("+="), tuple(items))
            before = self.at
            items.append(self.word())
            if self.at == before:
                raise Unread(f"line {self.line(begun)}: {self._shown(begun)} holds more of the shell than is read")

    def word(self) -> str:
        """One word as it is written: up to a blank or a sign outside quotes."""
        begun = self.at
        while self.at < len(self.text):
            if (plain := _LETTERS.match(self.text, self.at)) is not None:
                self.at = plain.end()
                continue
            c = self.text[self.at]
            if c in " \t\r\n;|&)":
                break
            if c in "<>":
                if not self.text.startswith("(", self.at + 1):
                    break
                self.at = end_of_bracket(self.text, self.at + 1)
            elif c == "(":
                if re.compile(r"[@?!*+]\Z").search(self.text[begun : self.at][-1:]) is None:
                    break
                self.at = end_of_bracket(self.text, self.at)
            else:
                self.at = end_of(self.text, self.at)
        return self.text[begun : self.at]
