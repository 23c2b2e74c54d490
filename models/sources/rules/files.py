"""Reads a file of public rules, whichever of the two forms it has: JSON (`formats`) or TASO's protobuf (`wire`)."""

from __future__ import annotations

from pathlib import Path

from .formats import PublicRule, check_rules, parse_public_rules
from .wire import decode_rules


def read_public_rules(path: Path | str) -> tuple[PublicRule, ...]:
    """The rules of a file: JSON (FlexFlow, TASO decoded) or TASO's protobuf.  Raises `RuleError` naming the file or
    the rule.
    """
    path = Path(path)
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or path.suffix == ".pb":
        return check_rules(decode_rules(data, path.name))
    return parse_public_rules(text, path.name)
