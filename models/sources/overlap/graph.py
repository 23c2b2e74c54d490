"""Reads a JSON graph of one rank's operators and collectives as a scheduling problem.

    nodes      [id, kind, op, inputs, shape, dtype, bytes, more]; kind: input, compute, collective, wait, view
    outputs    ids that are kept to the end
    groups     name of a process group -> ranks

    tasks        compute nodes on the compute stream, collectives on a stream per process group; waits and views take no
                 time: who reads one depends on the task behind it
    order        collectives of a group keep their program order; compute is free
    memory       the result of a task is held from its start to the end of its last reader, outputs to the end; inputs
                 from the beginning to the end of their last reader, as saved activations are, but parameters (inputs
                 called `primals_..`) and inputs that are outputs stay and are left out
    limit        the most that is held when all tasks run one after another in program order

Times are nanoseconds (`times`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

from ...files.input import regular
from ...files.json_text import JsonError, parse_json
from ...machine.machine import DEFAULT, Machine, load_machine
from ...schedules.problem import MOST_TASKS, Holding, Precedence, ScheduleProblem, Stream, Task
from ...text import InputError, did_you_mean
from .times import COLLECTIVES, DTYPES, Collective, Shaped, collective_ns, compute_ns, spans

MOST_BYTES = 1 << 28
COLUMNS = ["id", "kind", "op", "inputs", "shape", "dtype", "bytes", "more"]


@dataclass(frozen=True)
class OverlapGraph:
    """The problem, and where its times come from: nodes timed by the published table and by the machine's model.
    `priced`: collectives that the table does not hold -> how many; `apart`: groups that are no rows of the mesh, taken
    to be of consecutive ranks.
    """

    problem: ScheduleProblem
    machine: Machine
    modelled_compute: int
    tabled: int
    modelled_collectives: int
    priced: tuple[tuple[str, int], ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def busy(self) -> int:
        """Nanoseconds of all compute."""
        return sum(t.time for t in self.problem.tasks if t.streams == (0,))


def read_overlap(path: Path, machine: str | None = None) -> OverlapGraph:
    """Read a graph (`.json` or `.json.gz`); `machine` as `load_machine` takes it, default: dgx-a100 with as many
    ranks as the groups together, 8 in a node.  `InputError` names what is wrong.
    """
    data = regular(path).read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            unpack = zlib.decompressobj(31)
            data = unpack.decompress(data, MOST_BYTES)
        value = parse_json(data)
    except (zlib.error, gzip.BadGzipFile, JsonError) as error:
        raise InputError(f"{path}: is not a graph of operators and collectives: {error}") from None
    try:
        return _read(value, path, machine)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        if isinstance(error, ValueError) and type(error).__module__.startswith("shardproof."):
            raise
        raise InputError(
            f"{path}: is not a graph of operators and collectives: {type(error).__name__} {str(error)[:100]}; it needs "
            f"columns {json.dumps(COLUMNS)}, nodes, groups and outputs"
        ) from None


def _read(value: Any, path: Path, spec: str | None) -> OverlapGraph:
    if value["columns"] != COLUMNS:
        raise InputError(f"{path}: columns must be {json.dumps(COLUMNS)}")
    groups = {str(k): _count(v, f"{path}: group {k}") for k, v in value["groups"].items()}
    ranks = 1
    for size in groups.values():
        ranks *= size
    machine = load_machine(spec or f"{DEFAULT}:{max(1, ranks // 8)}x{min(8, ranks)}")
    nodes: list[list[Any]] = value["nodes"]
    if not 1 <= len(nodes) <= MOST_TASKS:
        raise InputError(f"{path}: has {len(nodes)} nodes, must have 1 to {MOST_TASKS}")
    network = _Network(path, machine, groups, _apart(nodes, groups, path), _results(nodes, path))
    for k, node in enumerate(nodes):
        network.add(k, node)
    holdings = network.holdings(value["outputs"])
    problem = ScheduleProblem(
        f"graph {path.name}",
        (Stream(0, "compute"), *(Stream(0, f"group {name}") for name in network.streams)),
        tuple(network.tasks),
        tuple(dict.fromkeys(network.before)),
        tuple(holdings),
        (program_peak(holdings),),
        "s",
        10**9,
    ).check()
    computed, timed, untimed = network.counts
    priced = tuple(sorted(network.priced.items()))
    return OverlapGraph(problem, machine, computed, timed, untimed, priced, tuple(network.apart))


def _results(nodes: list[list[Any]], path: Path) -> list[list[Shaped]]:
    """Tensors that every node makes, of views those that they show."""
    tensors: list[list[Shaped]] = []
    for node in nodes:
        shaped = [] if node[4] is None else [Shaped(tuple(_size(n, path) for n in node[4]), _dtype(node[5], path))]
        tensors.append(shaped)
    for k, node in enumerate(nodes):
        if node[0] != k or any(not 0 <= _size(i, path) < k for i in node[3]):
            raise InputError(f"{path}, node {k}: ids must count up, and inputs come before their readers")
        if node[1:3] == ["view", "getitem"] and nodes[node[3][0]][1:5:3] == ["compute", None]:  # one of several
            tensors[node[3][0]] = [*tensors[node[3][0]], *tensors[k]]
    return tensors


class _Network:
    """Tasks, precedences and held bytes of a graph, node by node."""

    def __init__(
        self,
        path: Path,
        machine: Machine,
        groups: Mapping[str, int],
        apart: dict[str, int],
        tensors: list[list[Shaped]],
    ) -> None:
        self.path, self.machine, self.groups, self.apart, self.tensors = path, machine, groups, apart, tensors
        self.streams = {name: k + 1 for k, name in enumerate((*groups, *apart))}
        self.tasks: list[Task] = []
        self.before: list[Precedence] = []
        self.counts = [0, 0, 0]  # computations, collectives with a time, collectives that are priced
        self.priced = Counter[str]()
        self._roots: list[tuple[int, ...]] = []  # tasks behind each node
        self._shows: list[tuple[int, ...]] = []  # inputs behind each node, through views
        self._loaned: dict[int, list[int]] = {}  # input -> tasks that read it, perhaps through views
        self._readers: list[list[int]] = []
        self._sizes: list[int] = []
        self._last_of: dict[str, int] = {}

    def add(self, k: int, node: list[Any]) -> None:
        """The task of a node, or what it shows."""
        _, kind, op, inputs, _, _, _, *more = node
        behind = tuple(dict.fromkeys(t for i in inputs for t in self._roots[i]))
        given = tuple(dict.fromkeys(x for i in inputs for x in self._shows[i]))
        if kind in ("input", "wait", "view"):
            if kind == "input" and not str(op).startswith("primals_"):
                self._loaned[k], given = [], (k,)
            self._roots.append(behind)
            self._shows.append(given)
            return
        self._shows.append(())
        t = len(self.tasks)
        for x in given:
            self._loaned[x].append(t)
        read = [x for i in inputs for x in self.tensors[i]]
        if kind == "compute":
            self.counts[0] += 1
            self.tasks.append(Task(f"{k} {op}", compute_ns(op, read, self.tensors[k], self.machine), (0,)))
        elif kind == "collective":
            group = str(more[0]["group"])
            self.tasks.append(Task(f"{k} {op}", self._collective(k, op, read, more[0]), (self.streams[group],)))
            if group in self._last_of:
                self.before.append(Precedence(self._last_of[group], t))
            self._last_of[group] = t
        else:
            raise InputError(f"{self.path}, node {k}: unknown kind {str(kind)[:40]!r}")
        self.before += [Precedence(b, t) for b in behind]
        for b in behind:
            self._readers[b].append(t)
        self._readers.append([])
        self._sizes.append(sum(x.bytes for x in self.tensors[k]))
        self._roots.append((t,))

    def _collective(self, k: int, op: Any, read: list[Shaped], about: Any) -> int:
        """Its time in ns, as the file has it or as the machine prices it."""
        group = str(about["group"])
        if about.get("table_ms") is not None:
            self.counts[1] += 1
            return ceil(Fraction(str(about["table_ms"])) * 10**6)
        self.counts[2] += 1
        self.priced[str(op)] += 1
        held = _size(about.get("in_bytes", 0), self.path)
        payload = max(sum(x.bytes for x in read), sum(x.bytes for x in self.tensors[k]), held)
        where = spans(group, self.groups, self.apart)
        return collective_ns(_known(op, f"{self.path}, node {k}"), where, payload, self.machine)

    def holdings(self, outputs: list[Any]) -> list[Holding]:
        """Bytes of every task's result up to its last reader, and of inputs that are given for the step."""
        kept = {t for i in outputs for t in self._roots[_size(i, self.path)]}
        held = [
            Holding(0, size, t, () if t in kept else tuple(self._readers[t]) or (t,))
            for t, size in enumerate(self._sizes)
            if size
        ]
        left = {x for i in outputs for x in self._shows[_size(i, self.path)]}
        return held + [
            Holding(0, sum(x.bytes for x in self.tensors[k]), None, tuple(users))
            for k, users in self._loaned.items()
            if users and k not in left
        ]


def _apart(nodes: list[list[Any]], groups: Mapping[str, int], path: Path) -> dict[str, int]:
    """Groups of collectives that are no rows of the mesh, such as those of experts: the ranks that a node says."""
    found: dict[str, int] = {}
    for k, node in enumerate(nodes):
        if node[1] == "collective" and (name := str(node[7]["group"])) not in groups:
            if "ranks" not in node[7]:
                known = ", ".join(groups)
                raise InputError(
                    f"{path}, node {k}: group {name[:40]!r} is none of {known}{did_you_mean(name, groups)}, and the "
                    "node does not say its ranks"
                )
            ranks = _count(node[7]["ranks"], f"{path}, node {k}: ranks")
            if found.setdefault(name, ranks) != ranks:
                raise InputError(f"{path}, node {k}: group {name[:40]!r} has {ranks} ranks, and {found[name]} before")
    return found


def _known(op: Any, place: str) -> Collective:
    """The collective of a name, such as `all_to_all_single.default`."""
    name = str(op).removeprefix("_c10d_functional.").removeprefix("c10d.").lstrip("_")
    found = next((c for word, c in COLLECTIVES.items() if name.startswith(word)), None)
    if found is None:
        near = did_you_mean(name.partition(".")[0].removesuffix("_single"), COLLECTIVES)
        raise InputError(
            f"{place}: collective {str(op)[:60]!r} has no time (table_ms) and is none that a machine prices{near}; "
            f"these are {', '.join(COLLECTIVES)}"
        )
    return found


def program_peak(holdings: list[Holding]) -> int:
    """The most held when tasks run one after another in order of their numbers.

    >>> program_peak([Holding(0, 5, 0, (1,)), Holding(0, 7, 1, (2,)), Holding(0, 1, 2, ())])
    12
    """
    changes: dict[int, int] = {}
    for h in holdings:
        first = 0 if h.first is None else h.first
        changes[first] = changes.get(first, 0) + h.amount
        if h.last:
            changes[max(h.last) + 1] = changes.get(max(h.last) + 1, 0) - h.amount
    level = most = 0
    for moment in sorted(changes):
        level += changes[moment]
        most = max(most, level)
    return most


def _size(value: Any, path: Path) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise InputError(f"{path}: {str(value)[:40]!r} is not a size or an id")
    return value


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise InputError(f"{what}: {str(value)[:40]!r} is not a number of ranks")
    return value


def _dtype(value: Any, path: Path) -> str:
    if value not in DTYPES:
        raise InputError(f"{path}: unknown type {str(value)[:40]!r}; known are {', '.join(DTYPES)}")
    return str(value)
