r"""Reads the collectives of a compiled JAX program from its HLO text, and compares them with a plan.

`jit(f).lower(..).compile().as_text()` is what XLA runs on every device.  Bytes that one receives over a group of g:

    all-gather to n bytes         (g - 1) / g n          all-reduce of n bytes     2 (g - 1) / g n
    reduce-scatter to n bytes     (g - 1) n              all-to-all of n bytes       (g - 1) / g n
    collective-permute of n bytes n, where the source is another device

which is what a plan counts at its innermost level.  HLO knows no names of tensors, so movements and collectives are
paired: of one kind and equal bytes first, then of equal bytes, then those that move other bytes in the same kind, a
planned reduce-scatter with an all-reduce (XLA's CPU backend sums whole and slices).  What is left over is named: by
tensor and reader in the plan, by the operation in whose name XLA put the collective.  A collective inside of a loop is
counted once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final

from ...proofs.plan.bundle import Plan
from .rows import Row, Traffic

KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_LINE = re.compile(rf"= (?P<shape>\([^=]*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(")
_ARRAY = re.compile(r"\b(?P<type>pred|bf16|[sufc]\d{1,3})(?:e\d\w*)?\[(?P<dims>[\d,]*)\]")
_NAME = re.compile(r'op_name="(?P<name>[^"]{0,400})"')


@dataclass(frozen=True)
class Sent:
    """A collective of the program: bytes that a device receives, and the operation that it was made for."""

    kind: str
    received: int
    name: str


def collectives(text: str, devices: int) -> tuple[Sent, ...]:
    """Those of a compiled module, in its order.

    >>> line = '%r = f32[4,16,32]{2,1,0} all-reduce(%x), replica_groups=[2,4]<=[4,2]T(1,0), metadata={op_name="f/dot"}'
    >>> collectives(line, 8)
    (Sent(kind='all-reduce', received=12288, name='f/dot'),)
    """
    out = []
    for line in text.splitlines():
        found = _LINE.search(line)
        if found is None:
            continue
        kind, arrays = found["kind"], [_bytes(m) for m in _ARRAY.finditer(found["shape"])]
        if found["start"] and kind in ("all-gather", "collective-permute"):
            arrays = arrays[1:2]  # operand, result, and what the runtime keeps
        n, g = sum(arrays), _group(line, devices)
        if kind == "collective-permute":
            pairs = re.findall(r"\{(\d+),(\d+)\}", line.partition("source_target_pairs=")[2].partition("}}")[0] + "}")
            received = n if any(a != b for a, b in pairs) else 0
        elif kind == "reduce-scatter":
            received = (g - 1) * n
        else:
            received = (2 if kind == "all-reduce" else 1) * (g - 1) * n // g
        name = _NAME.search(line)
        out.append(Sent(kind, received, name["name"] if name else "an operation without a name"))
    return tuple(s for s in out if s.received)


def compare_traffic(plan: Plan, text: str) -> Traffic:
    """Movements of a plan against the collectives of a compiled program."""
    kinds = {"permute": "collective-permute", "send": "collective-permute"}
    planned = [
        (
            f"{m.tensor} -> {m.reader or 'its place'}",
            kinds.get(m.collective, m.collective),
            m.loads[-1] * plan.graph.tensor(m.tensor).element_bytes,
        )
        for m in plan.communication
        if m.loads[-1]
    ]
    sent = [*collectives(text, plan.machine.devices)]
    pairs: dict[int, Sent] = {}
    rules: tuple[Callable[[str, int, Sent], bool], ...] = (
        lambda kind, n, s: kind == s.kind and n == s.received,
        lambda kind, n, s: n == s.received,
        lambda kind, n, s: (kind, s.kind) == ("reduce-scatter", "all-reduce") and 2 * n == s.received,
        lambda kind, n, s: kind == s.kind,
    )
    for rule in rules:
        for i, (_, kind, n) in enumerate(planned):
            match = next((s for s in sent if i not in pairs and rule(kind, n, s)), None)
            if match is not None:
                pairs[i] = match
                sent.remove(match)
    rows = [
        Row(place, n, pairs[i].received if i in pairs else 0, (pairs[i].kind,) if i in pairs else ())
        for i, (place, _, n) in enumerate(planned)
    ]
    rows += [Row(f"for {s.name}", 0, s.received, (s.kind,)) for s in sent]
    return Traffic(tuple(rows), ())


def _bytes(array: re.Match[str]) -> int:
    bits = {"pred": 8, "bf16": 16}.get(array["type"]) or int(array["type"][1:])
    n = prod(int(d) for d in array["dims"].split(",") if d)
    return n * max(8, bits) // 8


def _group(line: str, devices: int) -> int:
    """Devices of one group of a collective.

    >>> _group("replica_groups={{0,1},{2,3}}", 4), _group("replica_groups=[2,4]<=[8]", 8), _group("", 8)
    (2, 4, 8)
    >>> _group("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}, dimensions={0}", 8)
    2
    """
    said = line.partition("replica_groups=")[2]
    if said.startswith("{{"):
        return said[2:].partition("}")[0].count(",") + 1
    if listed := re.match(r"\[(\d+),(\d+)\]<=", said):
        return int(listed[2])
    if named := re.match(r"mesh\[([^\]]*)\] \{([^}]*)\}", said):
        sizes = {a: int(n) for a, n in re.findall(r"'([^']*)'=(\d+)", named[1])}
        return prod(int(k) if k else sizes[a] for a, k in re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", named[2])) or 1
    return devices
