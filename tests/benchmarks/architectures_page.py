"""The page of `architectures.py` as text: totals, a table per family, and the refusals by cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from architectures import LIBRARIES, Entry

Tries = Mapping[str, Mapping[str, Mapping[str, object]]]

HEAD = """# Architectures that import, and train

Written by `tests/benchmarks/architectures.py --page` from the results of the same script; not edited by hand.  Every row is an
architecture made from its configuration only (few layers, published widths), and what was tried is the public command:

    shardproof import FILE.py:NAME -o graph.json
    shardproof import FILE.py:NAME.training --train adam -o graph.json

with the files in `tests/benchmarks/published/`.  *Imports*: the graph was written and read back.  *Trains*: so was the training
step; the loss is the one the model returns for labels, or cross entropy or mean squared error around it as its users write it.
Seconds are processor time of one process, PyTorch's own export included (most of it); a
row without them was tried before they were counted so.
"""


def page(entries: Sequence[Entry], tries: Tries) -> str:
    """The page; entries that were never tried are counted and not listed.

    >>> page([], {}).splitlines()[0]
    '# Architectures that import, and train'
    """
    tried = [e for e in entries if {"import", "train"} <= set(tries.get(e.key, {}))]
    imports = [e for e in tried if tries[e.key]["import"]["good"]]
    trains = [e for e in imports if tries[e.key]["train"]["good"]]
    lines = [HEAD, f"**{len(tried)} architectures tried, {len(imports)} import{_share(len(imports), len(tried))}; "]
    lines[-1] += f"{len(trains)} of these train{_share(len(trains), len(imports))}.**"
    if len(tried) < len(entries):
        lines[-1] += f"  The list holds {len(entries)}; the others have not been tried on this machine."
    lines += ["", *_libraries(tried, imports, trains), "", *_causes(tried, tries)]
    for family in sorted({e.family for e in tried}):
        lines += ["", f"## {family}", "", "| model | library | operators | s | imports | operators | s | trains |"]
        lines.append("|---|---|---:|---:|---|---:|---:|---|")
        lines += [_row(e, tries[e.key]) for e in tried if e.family == family]
    return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""


def _library(entry: Entry) -> str:
    return LIBRARIES[entry.module.partition("_")[0]]


def _libraries(tried: Sequence[Entry], imports: Sequence[Entry], trains: Sequence[Entry]) -> list[str]:
    counts = [Counter(map(_library, part)) for part in (tried, imports, trains)]
    rows = [f"| {name} | {' | '.join(str(c[name]) for c in counts)} |" for name in LIBRARIES.values()]
    return ["| library | tried | import | train |", "|---|---:|---:|---:|", *rows]


def _row(entry: Entry, tries: Mapping[str, Mapping[str, object]]) -> str:
    cells = []
    for mode in ("import", "train"):
        t = tries[mode]
        seconds = "" if t["seconds"] is None else str(t["seconds"])
        cells += [str(t["operators"]), seconds, "yes"] if t["good"] else ["", seconds, _told(t)]
    return f"| `{entry.name}` {entry.title} | {_library(entry)} | {' | '.join(cells)} |"


def _told(result: Mapping[str, object]) -> str:
    text = re.sub(r"^error: |; supported operators: .*$", "", str(result["reason"]))
    return text[:240].replace("|", "/").replace("\n", " ")


def cause(reason: str) -> str:
    """A refusal without the names of its places, so that equal ones are counted together.

    >>> cause("error: unsupported operators: aten.sort.default (2: a, b); aten.topk.default (1: c); supported operators: x")
    'aten.sort.default, aten.topk.default'
    """
    listed = re.search(r"unsupported operators: (.*)", reason)
    if listed is not None:
        kinds = re.findall(r"([\w.]+(?: with [^;]*?)?) \(\d+:", listed[1])
        return ", ".join(sorted(kinds))
    plain = re.sub(r"'[^']*'", "..", re.sub(r"^error: (?:[\w./-]+\.py:[\w.]+: )?", "", reason))
    return re.sub(r"[0-9]+", "N", plain)[:140]


def _causes(tried: Sequence[Entry], tries: Tries) -> list[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for e in tried:
        for mode in ("import", "train"):
            t = tries[e.key][mode]
            if not t["good"]:
                found.setdefault((cause(str(t["reason"])).replace("|", "/"), mode), []).append(e.name)
                break
    rows = sorted(found.items(), key=lambda c: (-len(c[1]), c[0]))
    if not rows:
        return []
    lines = ["## What is refused, by cause", "", "| cause | of | models |", "|---|---|---|"]
    return [*lines, *(f"| {why} | {mode} | {len(names)}: {', '.join(names)} |" for (why, mode), names in rows)]
