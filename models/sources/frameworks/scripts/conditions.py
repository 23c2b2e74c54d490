"""Decides conditions of a script, where what they ask is known."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final

from .expansions import Shell
from .quotes import Unread

_NUMBERS: Final = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_SUM: Final = {"==": "-eq", "!=": "-ne", "<": "-lt", "<=": "-le", ">": "-gt", ">=": "-ge"}


def decide(shell: Shell, tokens: tuple[str, ...]) -> bool | None:
    """What `[ .. ]`, `[[ .. ]]`, `test ..` or `(( .. ))` says; None where only who starts the script knows.

    >>> shell = Shell(known={"A": ["1"], "B": [""]})
    >>> decide(shell, ("[", '"$A"', "=", "1", "]")), decide(shell, ("[[", "-n", "$B", "]]"))
    (True, False)
    >>> decide(shell, ("((A > 1 ))",)), decide(shell, ("[", "-n", '"$C"', "]")), decide(shell, ("[", "-z", '"$B"', "]"))
    (False, None, True)
    """
    if len(tokens) == 1 and tokens[0].startswith("((") and tokens[0].endswith("))"):
        found = re.fullmatch(r"\s*(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*", tokens[0][2:-2], re.DOTALL)
        if found is None:
            return None
        return _compared(shell, f"$(({found[1]}))", _SUM[found[2]], f"$(({found[3]}))")
    inner, closing = tokens[1:], {"[": "]", "[[": "]]"}.get(tokens[0])
    if closing is not None:
        if inner[-1:] != (closing,):
            return None
        inner = inner[:-1]
    return _any(shell, inner, tokens[0] == "[[")


def _any(shell: Shell, tokens: tuple[str, ...], double: bool) -> bool | None:
    for signs, stop in ((("||", "-o"), True), (("&&", "-a"), False)):
        for k, token in enumerate(tokens):
            if token in signs and 0 < k < len(tokens) - 1:
                both = _any(shell, tokens[:k], double), _any(shell, tokens[k + 1 :], double)
                return stop if stop in both else None if None in both else not stop
    if tokens[:1] == ("!",):
        found = _any(shell, tokens[1:], double)
        return None if found is None else not found
    if "(" in tokens or ")" in tokens:
        return None
    return _one(shell, tokens, double)


def _one(shell: Shell, tokens: tuple[str, ...], double: bool) -> bool | None:
    if len(tokens) == 2 and tokens[0] in ("-n", "-z"):
        text = _text(shell, tokens[1])
        return None if text is None else (text == "") is (tokens[0] == "-z")
    if len(tokens) == 1:
        text = _text(shell, tokens[0])
        return None if text is None else text != ""
    if len(tokens) != 3:
        return None
    one, sign, other = tokens
    if sign in _NUMBERS:
        return _compared(shell, one, sign, other)
    if sign not in ("=", "==", "!="):
        return None
    left, right = _text(shell, one), _text(shell, other)
    if left is None or right is None:
        return None
    same = fnmatchcase(left, right) if double and other[:1] not in "\"'" else left == right
    return same if sign != "!=" else not same


def _compared(shell: Shell, one: str, sign: str, other: str) -> bool | None:
    left, right = _text(shell, one), _text(shell, other)
    if left is None or right is None or not all(re.fullmatch(r"-?\d{1,18}", t, re.ASCII) for t in (left, right)):
        return None
    return bool(_NUMBERS[sign](int(left), int(right)))


def _text(shell: Shell, token: str) -> str | None:
    """The text of a word; None where it is not known."""
    try:
        found = shell.value(token)
    except Unread:
        return None
    return None if "$" in found else found


def matches(shell: Shell, word: str, patterns: tuple[str, ...]) -> bool | None:
    """Whether a word is one of the patterns of a `case`; None where that is not known."""
    if "*" in patterns:
        return True
    text = _text(shell, word)
    known = [_text(shell, p) for p in patterns]
    if text is None or None in known:
        return None
    return any(fnmatchcase(text, p) for p in known if p is not None)
