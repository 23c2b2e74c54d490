"""Does a job run the plan beside it, compute what one device does, and receive no more than was priced?

    optimal   the claim of the plan, and all others of its file
    equal     the proof of equality is one; and it is about this plan:
              * the exported file says that it was made of it
              * there are as many ranks as the machine has devices
              * weights of the plan are parameters of the one device, of the same shapes, inputs are inputs; of a plan
                that trains the loss and every weight after the step are compared, else as many outputs as it has
              * ranks have the part of every weight that the plan gives them, or all of it; what an optimizer holds
                of it beside that is cut as one of its moments
              What the program of the plan computes and what the one device does are held to be the same by name
              (`same-function`): no rule relates the plan's operators to PyTorch's
    bytes     no rank receives more, over all levels together, than the plan prices, and `excess` beyond

Received of a collective of g ranks, each with n bytes, in the way that takes least:

    all_gather (g - 1) n        reduce_scatter to n bytes (g - 1) n        all_to_all, recv: what others send
    all_reduce 2 (g - 1) n / g, the parts rounded up to elements           broadcast, reduce n

Priced: elements that enter the fullest device in every movement of the plan, whose numbers its checker has counted.
Nothing is priced for maxima and sums inside of operators.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from ...models.equality.pair import Pair, Part, Runs
from ...models.equality.program import KEPT, RankProgram, Step
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph, Role
from ...models.program.tensor import ELEMENT_BYTES, STATED
from ...proofs.equality.job import PASSES, Job
from ...proofs.plan.bundle import Plan
from ..plan.boxes import Interval, copy_of, read_by
from ..verdict import CheckResult, worst

SHOWN: Final = 12
"""Letters of a hash in the name of an assumption, and of an identity in a reason."""
MOST_RUNS: Final = 1 << 12
"""Runs of a weight in one dimension; what lies in more is not compared."""
BYTES: Final = "Bytes"
_SAID = re.compile(
    r"^LAYOUTS: dict\[str, Any\] = \{\s*'format': '[^'\n]*', 'identity': '([0-9a-f]{64})',", re.MULTILINE
)


def check_job(
    job: Job, plan: Plan, planned: Sequence[CheckResult], main: CheckResult, pair: Pair, equal: CheckResult
) -> tuple[CheckResult, CheckResult, CheckResult]:
    """The three claims.  `planned`: what was found of the plan, `main` the one that it is for; `equal`: of the pair."""
    verdict = worst(r.verdict for r in planned)
    first = next((r for r in planned if r.verdict is verdict and verdict is not Verdict.PROVED), None)
    reason = "" if first is None else f"{first.kind}: {first.reason or verdict.value}"
    sound = verdict is not Verdict.REFUTED
    bounds = (main.cost, main.lower_bound) if sound else (None, None)
    optimal = CheckResult(main.kind, verdict, *bounds, main.space, main.assumptions, reason)
    wrong = wrong_job(job, plan, pair)
    assumed = f"same-function({plan.graph.name}, {plan.graph.sha256()[:SHOWN]})"
    same = (*equal.assumptions, assumed)
    if wrong:
        equal = CheckResult(equal.kind, Verdict.REFUTED, None, None, equal.space, same, wrong)
    else:
        equal = CheckResult(equal.kind, equal.verdict, None, None, equal.space, same, equal.reason)
    return optimal, equal, check_received(job, plan, pair)


def check_received(job: Job, plan: Plan, pair: Pair) -> CheckResult:
    """Bytes that a rank receives against those that are priced."""
    try:
        counts = [sum(bytes_into(p, rank, s) for s in p.steps) for rank, p in enumerate(pair.ranks)]
    except _Unknown as error:
        return CheckResult(BYTES, Verdict.UNDECIDED, None, None, "", ("captured-steps",), str(error))
    planned, most = priced_bytes(plan), max(counts)
    beyond = f", and {job.excess:,} more are allowed" if job.excess else ""
    said = f"a rank receives at most {most:,} bytes in a {_pass(job)}; {planned:,} are priced{beyond}"
    if most <= planned + job.excess:
        return CheckResult(BYTES, Verdict.PROVED, most, None, said, ("captured-steps",))
    rank = counts.index(most)
    reason = f"rank {rank} receives {most - planned - job.excess:,} bytes more"
    return CheckResult(BYTES, Verdict.REFUTED, None, None, said, ("captured-steps",), reason)


def _pass(job: Job) -> str:
    return "step" if job.trains else "forward pass"


def priced_bytes(plan: Plan) -> int:
    """Bytes that enter the fullest device in the plan's movements."""
    return sum(m.loads[-1] * plan.graph.tensor(m.tensor).element_bytes for m in plan.communication)


class _Unknown(ValueError):
    """A step of which nobody knows what it receives."""


def bytes_into(program: RankProgram, rank: int, step: Step) -> int:
    """Bytes that a rank receives in one of its steps."""
    if step.operator not in KEPT or step.operator in ("send", "barrier"):
        return 0
    here = program.tensors[(step.makes if step.operator == "recv" else step.reads)[0]]
    if here.dtype not in ELEMENT_BYTES:
        raise _Unknown(f"{step.operator} of {here.dtype}: how many bytes that takes is not known here")
    size, n = ELEMENT_BYTES[here.dtype], prod(here.shape)
    if step.operator == "recv":
        return n * size
    group = step.word("ranks")
    if not isinstance(group, tuple) or rank not in group:
        raise _Unknown(f"{step.operator}: its ranks are not known")
    others = len(group) - 1
    match step.operator:
        case "all_gather":
            return others * n * size
        case "reduce_scatter":
            return others * -(-n // len(group)) * size
        case "all_reduce":
            return 2 * others * -(-n // len(group)) * size
        case "reduce":
            return n * size if others else 0
        case "broadcast":
            return 0 if step.word("source") == rank else n * size
        case "all_to_all":
            rows = step.word("receive")
            if not isinstance(rows, tuple) or len(rows) != len(group):
                raise _Unknown("all_to_all: what it receives of whom is not said")
            taken = program.tensors[step.makes[0]]
            return (sum(rows) - rows[group.index(rank)]) * prod(taken.shape[1:]) * size
        case _:
            raise _Unknown(f"{step.operator}: what it receives is not known here")


def wrong_job(job: Job, plan: Plan, pair: Pair) -> str:
    """Why the proof is not about a job of this plan; empty if it is."""
    named = _SAID.findall(job.text)
    if len(named) != 1:
        return "the exported file does not say, once, of which plan it was made"
    if named[0] != job.identity:
        return f"the exported file was made of plan {named[0][:SHOWN]}.., not of {job.identity[:SHOWN]}.."
    if len(pair.ranks) != plan.machine.devices:
        return f"the proof is about {len(pair.ranks)} ranks, the machine has {plan.machine.devices} devices"
    if pair.mesh is not None:  # its entries are of many ranks each, and say dimensions where others say ranks
        return "the proof is about ranks of a mesh, and bytes are counted rank by rank"
    trains = bool(plan.graph.state)
    if trains != job.trains:
        return f"the plan is of a {PASSES[trains]}, the job runs a {PASSES[job.trains]}"
    return _wrong_interface(plan.graph, pair, trains) or _wrong_layouts(plan, pair)


def _wrong_interface(graph: Graph, pair: Pair, trains: bool) -> str:
    shapes = {s.name: pair.single.tensors[s.number].shape for s in pair.single.sources}
    kinds = {s.name: s.kind for s in pair.single.sources}
    weights = [t for t in graph.tensors if t.role is Role.PARAMETER and not _is_moment(t.name, kinds)]
    for t in weights:
        if kinds.get(t.name) != "parameter":
            return f"the one device has no weight {t.name!r} of the plan"
        if shapes[t.name] != (t.source_shape or t.shape):
            return f"weight {t.name!r} is {shapes[t.name]} on one device, {t.source_shape or t.shape} in the plan"
    inputs = Counter(shapes[name] for name, kind in kinds.items() if kind == "input")
    stated = [t for t in graph.tensors if t.role is Role.INPUT and not t.name.startswith(STATED)]
    missing = Counter(t.source_shape or t.shape for t in stated) - inputs
    if missing:
        return f"the one device has no input of shape {min(missing)}, which the plan has"
    for rank, results in enumerate(pair.results):
        compared = Counter(name for name, _ in results)
        if trains:
            state = {name for name, _ in graph.state}
            wanted = {f"output.{t.name}" for t in weights if t.name in state} | {"output.loss"}
            if not wanted <= compared.keys():
                return f"{min(wanted - compared.keys())!r} of rank {rank} is not compared"
        elif len(compared) < len(graph.outputs):
            return f"{len(compared)} outputs of rank {rank} are compared, the plan has {len(graph.outputs)}"
    return ""


def _is_moment(name: str, kinds: dict[str, str]) -> bool:
    """Whether a parameter of a plan is what an optimizer keeps: called after one of the model."""
    return name not in kinds and kinds.get(name.rpartition(".")[0]) == "parameter"


def _wrong_layouts(plan: Plan, pair: Pair) -> str:
    shapes = {s.name: pair.single.tensors[s.number].shape for s in pair.single.sources}
    rests = {name: list(_rests(name, plan, shape)) for name, shape in shapes.items() if plan.graph.holds(name)}
    for rank, given in enumerate(pair.given):
        held = dict[str, list[Part]]()
        for _, what in given:
            if isinstance(what, Part) and what.of in rests:
                held.setdefault(what.of, []).append(what)
        for name, places in rests.items():
            if plan.graph.tensor(name).role is not Role.PARAMETER:
                continue
            whole = tuple(((0, 0, n),) for n in shapes[name])
            own, *moments = [place[rank] for place in places] or [None]
            found = [part.runs for part in held.get(name, ())]
            if not any(runs in (own, whole) for runs in found):
                return f"rank {rank} does not have the part of {name!r} that the plan gives it, and not all of it"
            if other := next((runs for runs in found if runs not in (own, whole, *moments)), None):
                return f"rank {rank} has {other} of {name!r}, which the plan gives neither it nor its optimizer"
    return ""


def _rests(name: str, plan: Plan, shape: tuple[int, ...]) -> Iterator[list[tuple[Runs, ...] | None]]:
    """Where a weight lies, and then what an optimizer keeps of it: for every device the runs of every dimension."""
    graph, hierarchy = plan.graph, plan.machine.hierarchy
    copies, operators = dict(plan.choices.copies), dict(plan.choices.operators)
    kept = [t.name for t in graph.tensors if t.role is Role.PARAMETER and t.name.startswith(f"{name}.")]
    for tensor in (name, *kept):
        if (graph.tensor(tensor).source_shape or graph.tensor(tensor).shape) != shape:
            continue
        if tensor in copies:
            found = copy_of(tensor, graph, copies[tensor], hierarchy)
        else:
            readers = graph.readers()[tensor]
            if len(readers) != 1:
                continue
            number, position = readers[0]
            op = graph.operators[number]
            found = read_by(op, position, graph, operators[op.name], hierarchy)
        yield [runs_of_box(box, found.shape, shape) for box in found.boxes]


def runs_of_box(box: Sequence[Interval], digits: Sequence[int], shape: Sequence[int]) -> tuple[Runs, ...] | None:
    """A box in digits as runs of the dimensions that the user knows; None where these are no product of runs.

    >>> runs_of_box(((0, 2), (1, 2)), (4, 2), (8,))
    (((0, 1, 1), (1, 3, 1)),)
    >>> runs_of_box(((2, 4), (0, 2), (0, 3)), (4, 2, 3), (8, 3))
    (((0, 4, 4),), ((0, 0, 3),))
    """
    out, at = list[Runs](), 0
    for n in shape:
        runs, size = [(0, 1)], 1
        while at < len(digits) and size * digits[at] <= n:
            (low, high), extent = box[at], digits[at]
            at, size = at + 1, size * extent
            if high - low == extent:
                runs = [(first * extent, many * extent) for first, many in runs]
            elif sum(many for _, many in runs) > MOST_RUNS:
                return None
            else:
                runs = [((first + k) * extent + low, high - low) for first, many in runs for k in range(many)]
        if size != n:
            return None
        out.append(_one_behind_another(runs))
    return tuple(out) if all(n == 1 for n in digits[at:]) else None


def _one_behind_another(runs: Sequence[tuple[int, int]]) -> Runs:
    """Runs that follow one another where they lie as one."""
    found, here = list[tuple[int, int, int]](), 0
    for first, many in runs:
        if not many:
            continue
        if found and found[-1][1] + found[-1][2] == first:
            found[-1] = (found[-1][0], found[-1][1], found[-1][2] + many)
        else:
            found.append((here, first, many))
        here += many
    return tuple(found) or ((0, 0, 0),)
