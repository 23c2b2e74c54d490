"""Writes out what an exported file says once for all layers; its text is part of such files.

    'layer{0..31}.query': 'layer{n}.norm'     one entry for each n; {n-1} and {n+1} are the layers beside it
    'layer{31..0}.query': ..                  the same, the last one first

Entries beside each other with one name before the range are a loop, up to one whose range ends with a semicolon: layer
by layer, all entries that have the layer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def every_layer(said: Any) -> Any:
    """`said` with an entry for every layer."""
    entries: list[Any] = [*said.items()] if isinstance(said, dict) else [*said] if isinstance(said, list) else []
    ranges = [_RANGE.search(_head(v)) for v in entries]
    if any(ranges):
        out = _in_turn(entries, ranges)
        return dict(out) if isinstance(said, dict) else out
    if isinstance(said, dict):
        return {k: every_layer(v) for k, v in said.items()}
    return [every_layer(v) for v in said] if isinstance(said, list) else said


def _in_turn(entries: Sequence[Any], ranges: Sequence[re.Match[str] | None]) -> list[Any]:
    """The entries, those of loops layer by layer."""
    out: list[Any] = []
    loop: list[tuple[Any, list[int]]] = []
    for k, (entry, found) in enumerate(zip(entries, ranges, strict=True)):
        if found is None:
            out.append(entry)
            continue
        loop.append((entry, _layers(found[2])))
        behind = ranges[k + 1] if k + 1 < len(ranges) else None
        if found[3] or behind is None or behind[1] != found[1]:
            down = any(layers[0] > layers[-1] for _, layers in loop)
            for n in sorted({n for _, layers in loop for n in layers}, reverse=down):
                out += [_of_layer(e, n) for e, layers in loop if n in layers]
            loop = []
    return out


def _head(entry: Any) -> str:
    """The name that an entry begins with."""
    if isinstance(entry, (list, tuple)) and entry:
        entry = entry[0]
    return entry if isinstance(entry, str) else ""


_RANGE = re.compile(r"([\w.]*)\{(\d[\d.,]*)(;?)\}")


def _layers(text: str) -> list[int]:
    """The numbers of a range."""
    layers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        a, b = int(first), int(last or first)
        layers += range(a, b + 1) if a <= b else range(a, b - 1, -1)
    return layers


def _of_layer(said: Any, n: int) -> Any:
    if isinstance(said, str):
        beside = {"{n}": n, "{n-1}": n - 1, "{n+1}": n + 1}
        text = re.sub(r"\{n(?:[-+]1)?\}", lambda m: str(beside[m[0]]), said)
        return _RANGE.sub(lambda m: f"{m[1]}{n}", text, count=1)
    if isinstance(said, dict):
        return {_of_layer(k, n): _of_layer(v, n) for k, v in said.items()}
    return type(said)(_of_layer(v, n) for v in said) if isinstance(said, (list, tuple)) else said
