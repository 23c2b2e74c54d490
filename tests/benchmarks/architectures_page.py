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


STEPS = """## Three optimizer steps beside PyTorch

Written from the results of `tests/benchmarks/three_steps.py`: small members of the families, weights drawn, the mean squared error
of the first output against a target.  *float64*: three steps of AdamW, the largest difference of the losses and of every weight
after every step, relative to the largest element (or to 1); what a model's code calls float32 (statistics of a norm, rotary
angles, positions) is float64 in both, and 1e-9 is asked of all.  *bfloat16*: three steps of SGD with the module in bfloat16 on
weights kept in float32; how far PyTorch's changes of all weights are from those in float64, how far this project's are, and how far
the two are from each other, as norms relative to the change.  A dash: PyTorch itself, or the import, refused; the reason is below.
"""


def steps(results: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The table of the three steps; nothing without results.

    >>> steps({})
    []
    """
    if not results:
        return []

    def shown(value: object, digits: int) -> str:
        return f"{value:.{digits}g}" if isinstance(value, float) else "-"

    good = [(name, *agrees(r)) for name, r in results.items()]
    lines = [
        STEPS,
        f"**{len(results)} models: {sum(d for _, d, _ in good)} agree in float64, {sum(h for *_, h in good)} in bfloat16.**",
        "",
    ]
    lines += [
        "| model | float64 | PyTorch bf16 | this project bf16 | apart | agree |",
        "|---|---:|---:|---:|---:|---|",
    ]
    reasons = []
    for name, double, half in good:
        r = results[name]
        words = " and ".join(w for w, ok in (("float64", double), ("bfloat16", half)) if ok) or "no"
        row = [shown(r["double"], 2)]
        row += [shown(r[k], 2) for k in ("torch_half", "own_half", "apart")]
        lines.append(f"| {name} | {' | '.join(row)} | {words} |")
        told = dict.fromkeys(str(r[k]) for k in ("reason", "reason_half") if r[k])
        reasons += [f"* {name}: {' '.join(t[:240].split())}" for t in told]
    return [*lines, "", *reasons, ""] if reasons else [*lines, ""]


HALVES = 2.0
FEW = 2.0**-5
"""Rounding: this project may be so many times as far from float64 as PyTorch's own bfloat16 is, and eight units of its
last place more: one relu whose argument rounds to the other side of zero moves a gradient by several percent.
"""


def agrees(r: Mapping[str, object]) -> tuple[bool, bool]:
    """Whether float64 agrees, and whether bfloat16 does within its rounding.

    >>> agrees({"double": 1e-12, "single": False, "torch_half": 0.01, "own_half": 0.012, "apart": 0.01})
    (True, True)
    """
    double, theirs, ours = r["double"], r["torch_half"], r["own_half"]
    near = isinstance(double, float) and double <= 1e-9
    if not isinstance(theirs, float) or not isinstance(ours, float):
        return near, False
    return near, ours <= HALVES * theirs + FEW


def page(entries: Sequence[Entry], tries: Tries, numbers: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """The page; entries that were never tried are counted and not listed.  `numbers`: of the three steps.

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
    lines += ["", *steps(numbers or {})]
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
