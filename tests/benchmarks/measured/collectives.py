"""Collectives of three public tables: nccl-tests-like rows on one node, Vidur's profiles, Alpa's on p3.16xlarge.

level        what a group spans, with constants of its own: a switch or pair of links, the host (PCIe between pairs or
             sockets), the network
operation    reductions keep element types apart (adding halves is other work than adding bytes, and only some types
             are added inside a switch)
Alpa's rows  time a compiled program: a launch where a rank has nothing to send, two launches per element until the
             start-up of the collective is reached, one rank alone copies.  Constants of those: its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import median

from shardproof.formal.calibration.collective_profiles import Profiled, profile
from shardproof.formal.calibration.collective_times import Fitted, Measured, Ratios, fit
from shardproof.models.cost.collective_times import Group, Operation
from shardproof.models.machine.rings import CUBE_MESH, links_between, rings

from .judging import Figures, errors
from .products import alpa_products
from .rows import Cells, number, read, whole

__all__ = ["Key", "Library", "alpa", "nccl", "vidur"]

_PCIE = ("l40s", "rtx_pro_6000_server")
"""No NVLink (data sheets): up to four GPUs hang on one socket of a host with eight, more cross both."""

_POOR = 0.06
"""Mean relative error from which a machine is not described by the shapes that the others share."""

_RAMPS = (Fraction(0), Fraction(1, 16), Fraction(1, 8))


@dataclass(frozen=True, order=True)
class Key:
    """Rows that share constants."""

    machine: str
    software: str
    operation: Operation
    dtype: str
    level: str


class Library:
    """Constants of all keys that have rows, fitted; predictions for any key, from the nearest one that has."""

    def __init__(self, rows: Iterable[tuple[Key, Measured]]) -> None:
        self.rows: dict[Key, list[Measured]] = {}
        for key, row in rows:
            self.rows.setdefault(key, []).append(row)
        self.found: dict[Key, Fitted] = {}
        self.profiles: dict[Key, Profiled] = {}
        for operation in Operation:
            keys = [k for k in sorted(self.rows) if k.operation is operation]
            switched = {k: self.rows[k] for k in keys if k.level == "switch" and k.software}
            self.profiles |= {k: f for k, f in profile(switched).items() if f.mean_error <= _POOR}
            tried = [self._fitted(keys, ramp) for ramp in _RAMPS] if keys else []
            if tried:
                self.found |= min(tried, key=lambda found: sum(f.mean_error * f.rows for f in found.values()))

    def _fitted(self, keys: list[Key], ramp: Fraction) -> dict[Key, Fitted]:
        several = {k for k in keys if len({r.group for r in self.rows[k]}) > 1}
        found = {k: self._better(k, Ratios(0.0, 0.0), ramp) for k in keys if k in several}
        ratios = _ratios(found)
        return found | {k: self._better(k, ratios, ramp) for k in keys if k not in several}

    def _better(self, key: Key, ratios: Ratios, ramp: Fraction) -> Fitted:
        """Links between nodes may slow down for large buffers; those of a switch do not."""
        found = fit(self.rows[key], ratios, ramp)
        if key.level != "network" or found.mean_error < _POOR:
            return found
        return min(found, fit(self.rows[key], ratios, ramp, late=True), key=lambda f: f.mean_error)

    def nearest(self, key: Key) -> Fitted | None:
        """The constants for a key, or of the most similar key: another type, software, operation, machine."""
        closer: tuple[Callable[[Key], object], ...] = (
            lambda k: k,
            lambda k: (k.machine, k.software, k.operation, k.level),
            lambda k: (k.machine, k.operation, k.level),
            lambda k: (k.machine, k.level),
            lambda k: (k.operation, k.level),
            lambda k: (k.operation,),
            lambda k: (),
        )
        for same in closer:
            found = [k for k in self.found if same(k) == same(key)]
            if found:
                return self.found[max(found, key=lambda k: (self.found[k].rows, k))]
        return None

    def seconds(self, key: Key, row: Measured) -> float:
        """The prediction for one row; the row's own seconds are not read."""
        known = self.profiles.get(key)
        if known is not None and known.covers(row.group.ranks):
            return float(known.time.seconds(row.operation, row.group, row.size))
        nearest = self.nearest(key)
        if nearest is None:
            return usual(key, row)
        return float(nearest.time.seconds(row.operation, row.group, row.size))


def usual(key: Key, row: Measured) -> float:
    """Seconds where no row at all was given to fit: 20 us, and what a device sends over an ordinary link."""
    others = max(0, row.group.ranks - 1) / max(1, row.group.ranks)
    times = 2 * others if row.operation is Operation.ALL_REDUCE else others
    return 2e-5 + times * row.size / (1e11 if key.level == "switch" else 1e10)


def _ratios(found: dict[Key, Fitted]) -> Ratios:
    """Medians over keys that separate the constants; a third and a half where none does (the A100 rows of NCCL)."""
    hop = [float(f.time.hop / f.time.fixed) for f in found.values() if f.time.fixed]
    own = [float(f.time.own / f.time.wire) for f in found.values() if f.time.wire]
    return Ratios(median(hop) if hop else 0.33, median(own) if own else 0.5)


def _typed(operation: Operation, dtype: str) -> str:
    return dtype if operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER) else ""


def nccl_rows(folder: Path) -> list[tuple[Key, Measured]]:
    """`nccl/one_machine`: groups of one node behind a switch, or on PCIe."""
    out = []
    for row in read(folder, "nccl/one_machine"):
        operation, ranks = Operation(row["operation"]), whole(row, "ranks", 1)
        level = ("socket" if ranks <= 4 else "host") if row["gpu"] in _PCIE else "switch"
        key = Key(row["gpu"], row["folder"], operation, _typed(operation, row["dtype"]), level)
        out += _measured(key, Group(ranks), whole(row, "bytes", 0), (number(row, "ms") or math.nan) / 1e3)
    return out


def vidur_rows(folder: Path) -> list[tuple[Key, Measured]]:
    """`nccl/vidur`: medians; across nodes each rank of a node is a port of its own until the port is full."""
    out = []
    for row in read(folder, "nccl/vidur"):
        operation, ranks, here = Operation(row["operation"]), whole(row, "ranks", 1), whole(row, "ranks_per_node", 1)
        nodes = max(1, ranks // here)
        level = "network" if nodes > 1 else "host" if "pairwise" in row["cluster"] and ranks > 2 else "switch"
        seconds = (number(row, "median_ms") or math.nan) / 1e3
        out += _measured(
            Key(row["cluster"], "", operation, "", level), Group(ranks, nodes), whole(row, "bytes", 0), seconds
        )
    return out


def _measured(key: Key, group: Group, size: int, seconds: float) -> list[tuple[Key, Measured]]:
    return [(key, Measured(key.operation, group, size, seconds))] if math.isfinite(seconds) and seconds > 0 else []


def _judged(fitted: list[tuple[Key, Measured]], judged: list[tuple[Key, Measured]]) -> Figures:
    library = Library(fitted)
    return errors([library.seconds(k, r) for k, r in judged], [r.seconds for _, r in judged])


def nccl(fit_folder: Path, judge_folder: Path) -> Figures:
    """Collectives of one node on seven kinds of GPU."""
    return _judged(nccl_rows(fit_folder), nccl_rows(judge_folder))


def vidur(fit_folder: Path, judge_folder: Path) -> Figures:
    """All-reduce and send-receive on five clusters, inside and across nodes."""
    return _judged(vidur_rows(fit_folder), vidur_rows(judge_folder))


@dataclass(frozen=True)
class AlpaRow:
    """One row of Alpa's table.  `pieces`: elements of the smallest message; `zero`: nothing at all is sent."""

    key: Key
    row: Measured
    alone: bool
    pieces: int
    zero: bool


def alpa_rows(folder: Path) -> list[AlpaRow]:
    """`nccl/alpa_collectives`: p3.16xlarge, several groups at once; rows that timed out are left out."""
    out = []
    for row in read(folder, "nccl/alpa_collectives"):
        seconds = number(row, "s") or math.inf
        if not math.isfinite(seconds):
            continue
        name = row["operation"]
        operation = Operation.ALL_TO_ALL if name == "all_to_all" else Operation(name)
        ranks, elements, size = whole(row, "ranks", 1), whole(row, "elements", 0), whole(row, "bytes", 0)
        group = _alpa_group(row)
        key = Key(
            "p3.16xlarge", "", operation, _typed(operation, row["dtype"]), "network" if group.nodes > 1 else "node"
        )
        pieces = elements // (ranks**2 if operation is Operation.ALL_TO_ALL else ranks)
        if operation is Operation.ALL_REDUCE:
            pieces = elements + 10**6  # in place: no rank waits for a share of its own
        held = size // ranks if operation is Operation.ALL_TO_ALL else size
        measured = Measured(operation, group, held, seconds)
        out.append(AlpaRow(key, measured, ranks == 1, pieces, elements == 0))
    return out


def _alpa_group(row: Cells) -> Group:
    ranks, stride, nodes = whole(row, "ranks", 1), whole(row, "stride", 1), whole(row, "nodes_spanned", 1)
    devices = int(row["mesh"].partition("x")[2])
    if nodes > 1:
        return Group(ranks, nodes, sharing=max(1, devices * nodes // ranks))
    held, unlinked = _in_cube(devices, ranks, stride)
    return Group(ranks, 1, rings=held, unlinked=unlinked)


@cache
def _in_cube(devices: int, ranks: int, stride: int) -> tuple[int, int]:
    """Fewest rings and most unlinked peers over the groups of one node."""
    if ranks == 1:
        return 1, 0
    first = [i for i in range(devices) if i // stride % ranks == 0]
    groups = [tuple(i + stride * j for j in range(ranks)) for i in first]
    groups = [g for g in groups if g[-1] < devices] or [tuple(range(ranks))]
    apart = max(sum(1 for b in g if b != a and not links_between(CUBE_MESH, a, b)) for g in groups for a in g)
    return max(1, min(rings(CUBE_MESH, g) for g in groups)), apart


def alpa(fit_folder: Path, judge_folder: Path) -> Figures:
    """Collectives of concurrent groups on V100 nodes, and (`alpa_matmul`) its matrix products."""
    known, asked = alpa_rows(fit_folder), alpa_rows(judge_folder)
    launch = _median([r.row.seconds for r in known if r.pieces == 0 and not r.zero], 2e-5)
    alone = _median([r.row.seconds for r in known if r.alone and r.row.size < 1 << 20], launch)
    copy = _median([r.row.seconds / r.row.size for r in known if r.alone and r.row.size >= 1 << 28], 2.5e-12)
    rows = [(r.key, r.row) for r in known if not r.alone and not r.zero and r.pieces >= 64]
    library = Library(rows)

    def seconds(r: AlpaRow) -> float:
        if r.alone:
            return max(alone, alone + copy * r.row.size)
        if r.zero and r.row.operation is Operation.ALL_REDUCE:
            return _empty(library, r, launch)
        if r.pieces == 0:
            return launch
        return min(2 * launch * r.pieces, library.seconds(r.key, r.row))

    predicted, measured = alpa_products(fit_folder, judge_folder)
    return errors(predicted + [seconds(r) for r in asked], measured + [r.row.seconds for r in asked])


def _empty(library: Library, r: AlpaRow, launch: float) -> float:
    """An all-reduce of nothing is summed inside each node and never sent."""
    group = r.row.group
    if group.nodes == 1:
        return library.seconds(r.key, r.row)
    here = int(group.per_node)
    if here == 1:
        return 2 * launch
    key = Key(r.key.machine, "", r.key.operation, r.key.dtype, "node")
    return library.seconds(key, Measured(r.row.operation, Group(here), 0, 0.0))


def _median(values: list[float], default: float) -> float:
    return median(values) if values else default
