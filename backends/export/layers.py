"""Says once, in exported files, what is equal in many layers.

A table of an exported file names tensors and operators; those of layer n and of layer n + 1 differ by a number only,
where the plan lays them out alike.  Entries are grouped by their text with that number replaced:

    {'layer0.q': ['layer0.norm'], 'layer1.q': ['layer1.norm']}    ->    {'layer{0..1}.q': ['layer{n}.norm']}

Of several numbers in a name the one counts by which most names of the table are alike, then that of the later layer.  A
table is folded only where `every_layer` (`layers_runtime`, in the file itself) gives back the same entries in the same
order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from .layers_runtime import every_layer

RUNTIME: Final = Path(__file__).with_name("layers_runtime.py")
WIDTH: Final = 118
"""Columns of a line of data, where its texts are shorter."""
NOTATION: Final = (
    "Equal layers are said once: `{0..31}` in a name stands for that many entries, `{n}` in its entry for each of\n"
    "these numbers (`every_layer` writes them out)."
)
"""What a file says of the names in it."""
_NUMBER: Final = re.compile(r"(?<!\d)(?:0|[1-9]\d{0,5})(?!\d)")
_BEFORE: Final = re.compile(r"[\w.]*$")
_RANGE: Final = re.compile(r"\{\d[\d.,]*\}")
_MARKS: Final = re.compile(r"\{[n\d]")
"""What ranges begin with: where names of a plan have it themselves, nothing is folded."""


def fold_layers(data: object) -> object:
    """Plain data with equal layers said once; `every_layer` of it is `data` again, in the same order.

    >>> fold_layers({"norm": 1, "h.0.w": ["h.0.x", 8], "h.1.w": ["h.1.x", 8], "h.2.w": ["h.2.x", 4]})
    {'norm': 1, 'h.{0..1}.w': ['h.{n}.x', 8], 'h.{2}.w': ['h.{n}.x', 4]}
    >>> fold_layers([f"h.{k}.{part}" for k in (2, 1, 0) for part in "ab"])
    ['h.{2..0}.a', 'h.{2..0}.b']
    """
    if any(_MARKS.search(text) for text in _texts(data)):
        return data
    return _fold(data)


def layers_text(data: object) -> str:
    """Data as Python, with equal layers said once where that is shorter.

    >>> layers_text({f"layer{k}.w": 0 for k in range(4)}), layers_text({"layer1.w": 0})
    ("every_layer({'layer{0..3}.w': 0})", "{'layer1.w': 0}")
    """
    short = fold_layers(data)
    return _python(data) if short == data else f"every_layer({_python(short)})"


def plan_texts(data: object) -> tuple[str, str]:
    """What a file says of a plan, for its first page, and how `PLAN` is made of that, for its end.

    >>> plan_texts({f"layer{k}.w": 0 for k in range(4)})
    ("LAYOUTS: dict[str, Any] = {'layer{0..3}.w': 0}", 'PLAN: dict[str, Any] = every_layer(LAYOUTS)')
    """
    short = fold_layers(data)
    made = "LAYOUTS" if short == data else "every_layer(LAYOUTS)"
    return f"LAYOUTS: dict[str, Any] = {_python(short)}", f"PLAN: dict[str, Any] = {made}"


def _python(data: object, indent: int = 0) -> str:
    """Plain data as Python: on one line where that fits, else an entry on a line, short ones side by side."""
    text = repr(data)
    match data:
        case dict() if len(text) + indent > WIDTH:
            entries = [f"{k!r}: {_python(v, indent + 1)}" for k, v in data.items()]
            opened, closed = "{", "}"
        case list() if len(text) + indent > WIDTH:
            entries = [_python(v, indent + 1) for v in data]
            opened, closed = "[", "]"
        case _:
            return text
    lines = [entries[0]]
    for entry in entries[1:]:
        beside = f"{lines[-1]}, {entry}"
        if "\n" not in beside and len(beside) + indent < WIDTH - 2:
            lines[-1] = beside
        else:
            lines.append(entry)
    pad = "\n" + " " * (indent + 1)
    return opened + pad + f",{pad}".join(lines) + f",\n{' ' * indent}{closed}"


@dataclass(frozen=True)
class _Entry:
    """An entry of a table; `before`: what stands before the number of its layer, `layer`: that number, `template`: the
    entry of any such layer, as text.  None: no layer.
    """

    entry: object
    before: str | None = None
    layer: int = 0
    template: object = None


def _fold(data: object) -> object:
    entries: list[object] = [*data.items()] if isinstance(data, dict) else [*data] if isinstance(data, list) else []
    out: list[object] = []
    for _, run in groupby(_entries(entries), key=lambda e: e.before):
        ways = [_loop(way) for way in _ways([*run])]
        out += [entry for k, way in enumerate(ways) for entry in (way if k + 1 == len(ways) else _ended(way))]
    if len(out) < len(entries):
        short: object = dict(out) if isinstance(data, dict) else out  # type: ignore[arg-type]
        if repr(every_layer(short)) == repr(data):
            return short
    if isinstance(data, dict):
        return {k: _fold(v) for k, v in data.items()}
    return [_fold(v) for v in data] if isinstance(data, list) else data


def _ways(run: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    """A run cut where its layers turn from upwards to downwards, or back."""
    way: list[_Entry] = []
    turn = 0
    for e in run:
        step = e.layer - way[-1].layer if way else 0
        if step * turn < 0:
            yield way
            way, turn = [], 0
        elif step:
            turn = step
        way.append(e)
    yield way


def _entries(entries: Sequence[object]) -> list[_Entry]:
    """The entries with the number of their layers."""
    heads = [[*_templates(_head(entry))] for entry in entries]
    alike = Counter(template for head in heads for template in {t for t, _, _ in head})
    out = []
    for entry, head in zip(entries, heads, strict=True):
        template, number, before = max(head, key=lambda t: (alike[t[0]], t[1]), default=("", 0, ""))
        if alike[template] < 2:
            out.append(_Entry(entry))
        else:
            out.append(_Entry(entry, before, number, _of_any_layer(entry, before, number)))
    return out


def _templates(head: str) -> Iterator[tuple[str, int, str]]:
    """For every number of a name: the name as that of any layer, the number, what stands before it."""
    for m in _NUMBER.finditer(head):
        found = _BEFORE.search(head[: m.start()])
        before = found[0] if found else ""
        yield _name_of_any_layer(head, before, int(m[0])), int(m[0]), before


def _loop(run: Sequence[_Entry]) -> list[object]:
    """What is said of a run of entries with the same name before their layers, which run up or down."""
    plain = [e.entry for e in run]
    of: dict[str, list[_Entry]] = {}
    for e in run:
        of.setdefault(repr(e.template), []).append(e)
    if run[0].before is None or len(of) == len(run):
        return plain
    short = [_of_layers(of[key][0], [e.layer for e in of[key]]) for key in _order(run)]
    return short if every_layer(short) == plain else plain


def _ended(loop: Sequence[object]) -> list[object]:
    """A loop that another one of the same name follows."""
    match loop[-1]:
        case str() as name:
            last: object = _RANGE.sub(lambda m: f"{m[0][:-1]};}}", name, count=1)
        case (str() as name, *rest) as whole if _RANGE.search(name):
            made = [_RANGE.sub(lambda m: f"{m[0][:-1]};}}", name, count=1), *rest]
            last = tuple(made) if isinstance(whole, tuple) else made
        case other:
            last = other
    return [*loop[:-1], last]


def _order(run: Sequence[_Entry]) -> list[str]:
    """Templates in an order that every layer has them in: a new one before what follows it in its layer."""
    order: list[str] = []
    for _, group in groupby(run, key=lambda e: e.layer):
        behind = len(order)
        for key in reversed([repr(e.template) for e in group]):
            if key in order:
                behind = order.index(key)
            else:
                order.insert(behind, key)
    return order


def _of_layers(entry: _Entry, layers: Sequence[int]) -> object:
    """The template with the range of its layers in its name."""
    step = -1 if layers[0] > layers[-1] else 1
    runs = []
    for _, group in groupby(enumerate(layers), key=lambda p: p[1] - step * p[0]):
        run = [n for _, n in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}")
    said = "{" + ",".join(runs) + "}"
    match entry.template:
        case str() as name:
            return name.replace("{n}", said, 1)
        case (str() as name, *rest):
            made = [name.replace("{n}", said, 1), *rest]
            return tuple(made) if isinstance(entry.template, tuple) else made
        case other:
            return other


def _name_of_any_layer(name: str, before: str, n: int) -> str:
    """A text with the number n, and those beside it, as marks wherever they follow the same name."""
    marks = {n: "{n}", n - 1: "{n-1}", n + 1: "{n+1}"}
    pattern = rf"(?<![\w.]){re.escape(before)}({_NUMBER.pattern})"
    return re.sub(pattern, lambda m: before + marks.get(int(m[1]), m[1]), name)


def _of_any_layer(said: object, before: str, n: int) -> object:
    """Plain data with these marks."""
    match said:
        case str():
            return _name_of_any_layer(said, before, n)
        case dict():
            return {_of_any_layer(k, before, n): _of_any_layer(v, before, n) for k, v in said.items()}
        case list():
            return [_of_any_layer(v, before, n) for v in said]
        case tuple():
            return tuple(_of_any_layer(v, before, n) for v in said)
        case _:
            return said


def _head(entry: object) -> str:
    match entry:
        case str() as name:
            return name
        case (str() as name, *_):
            return name
        case _:
            return ""


def _texts(data: object) -> Iterator[str]:
    match data:
        case str():
            yield data
        case dict():
            for k, v in data.items():
                yield from _texts(k)
                yield from _texts(v)
        case list() | tuple():
            for v in data:
                yield from _texts(v)


__all__ = ["NOTATION", "RUNTIME", "every_layer", "fold_layers", "layers_text", "plan_texts"]
