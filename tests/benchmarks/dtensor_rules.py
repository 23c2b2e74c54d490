"""Placements of DTensor on operators of ATen: which are right for all sizes, and what torch has of them.

    python tests/benchmarks/dtensor_rules.py [--only GLOB] [--show NUMBER]

judges every rule of `rules dtensor`, asks torch what it does with operands that are placed so, shows every refuted rule
on two gloo ranks, and writes all as a page into `results/dtensor-rules.md`; --show runs rule NUMBER alone on the ranks
and prints what they have.

    proved      for all sizes, each by a proof that the checker replayed
    in torch    torch's operator takes these placements as they are and gives this one
    otherwise   it takes them as they are and gives another placement, which is proved too
    missing     it moves tensors first: its table of strategies lacks the rule (slices that a rank takes of a replica
                are no movement)
    some sizes  proved where sizes are such (a window of one place)
    refuted     by numbers of the prover; on ranks: what two gloo ranks give is another tensor, or none
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from shardproof.formal.rewriting.prove import judge
from shardproof.models.rewrites.specified_rows import SPECIFIED
from shardproof.models.sources.rules.placements import (
    PARTIAL,
    REPLICATE,
    Placed,
    PlacementRule,
    placement_rules,
    placements,
)
from shardproof.proofs.rewrites.judgement import Proved, Refuted

PAGE: Final = Path(__file__).resolve().parent / "results/dtensor-rules.md"
SIZE: Final = 8
"""Elements of every dimension."""
Call = Callable[..., Tensor]


def call_of(placed: Placed) -> Call:
    """The operator as PyTorch has it."""
    axis = dict(placed.parameters).get("axis", 0)
    calls: Mapping[str, Call] = {
        "add": torch.add,
        "mul": torch.mul,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "gelu": F.gelu,
        "silu": F.silu,
        "matmul": torch.mm,
        "batch_matmul": torch.bmm,
        "transpose": lambda x: x.permute(1, 0),
        "concat": lambda x, y: torch.cat([x, y], axis),
        "reduce_sum": lambda x: x.sum(axis),
        "reduce_max": lambda x: x.amax(axis),
        "reduce_mean": lambda x: x.mean(axis),
        "softmax": lambda x: x.softmax(axis),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        SPECIFIED: lambda x, w: F.conv2d(x, w, stride=int(placed.aten.rstrip(")")[-1])),
        "max_pool": lambda x: F.max_pool2d(x, 2, 1),
        "average_pool": lambda x: F.avg_pool2d(x, 2, 1),
        "embedding": lambda table, ids: F.embedding(ids, table),
    }
    return calls[placed.operator]


def placement_of(text: str) -> Placement:
    """As torch says it."""
    if text in (REPLICATE, PARTIAL):
        return Replicate() if text == REPLICATE else Partial("sum")
    return Shard(int(text[6:-1]))


def locals_of(rule: PlacementRule, rank: int) -> list[Tensor]:
    """What a rank has of every operand: random numbers, of replicas the same on all ranks."""
    out = []
    for k, (dimensions, text) in enumerate(zip(rule.placed.ranks, rule.reads, strict=True)):
        shape = [SIZE] * dimensions
        if text.startswith("Shard"):
            shape[int(text[6:-1])] //= 2
        seed = torch.Generator().manual_seed(100 * k + (0 if text == REPLICATE else rank))
        if rule.placed.operator == "embedding" and k == 1:
            out.append(torch.randint(SIZE, shape, generator=seed))
        else:
            out.append(torch.randn(shape, generator=seed, dtype=torch.float64))
    return out


def torch_gives(rule: PlacementRule, mesh: DeviceMesh) -> tuple[str, int]:
    """The placement of torch's result, and how many collectives it took; or what it says."""
    from torch.distributed.tensor.debug import CommDebugMode

    operands = [
        DTensor.from_local(x, mesh, [placement_of(p)], run_check=False)
        for x, p in zip(locals_of(rule, 0), rule.reads, strict=True)
    ]
    try:
        with CommDebugMode() as mode:
            result = call_of(rule.placed)(*operands)
    except (RuntimeError, NotImplementedError, ValueError, AssertionError, IndexError) as error:
        return type(error).__name__, 0
    assert isinstance(result, DTensor)
    (found,) = result.placements
    if isinstance(found, Partial):
        return f"{type(found).__name__.lstrip('_')}({found.reduce_op})", mode.get_total_counts()
    return f"Shard({found.dim})" if isinstance(found, Shard) else REPLICATE, mode.get_total_counts()


def differs(rule: PlacementRule, mesh: DeviceMesh, rank: int, tell: bool = False) -> bool:
    """Whether what the ranks give, put together as the rule says, is not the operator of the whole operands."""
    mine, call = locals_of(rule, rank), call_of(rule.placed)
    operands = [
        DTensor.from_local(x, mesh, [placement_of(p)], run_check=False).full_tensor()
        for x, p in zip(mine, rule.reads, strict=True)
    ]
    try:
        whole = call(*operands)
        result = call(*mine)
        together = DTensor.from_local(result, mesh, [placement_of(rule.writes)], run_check=False).full_tensor()
        wrong = together.shape != whole.shape or not torch.allclose(together, whole)
        if tell:
            print(f"rank {rank}: {list(together.shape)}", together.flatten()[:4].tolist(), "whole:", list(whole.shape))
            print(f"rank {rank}: whole {whole.flatten()[:4].tolist()}", flush=True)
    except (RuntimeError, IndexError) as error:
        wrong = True
        if tell:
            print(f"rank {rank}: {error}", flush=True)
    found = torch.tensor(float(wrong))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def _shown(rank: int, store: str, numbers: Sequence[int], out: str, tell: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh, rules = init_device_mesh("cpu", (2,)), list(placement_rules())
    found = [k for k in numbers if differs(rules[k], mesh, rank, tell)]
    if rank == 0:
        Path(out).write_text(" ".join(map(str, found)), encoding="utf-8")
    dist.destroy_process_group()


def shown_on_ranks(numbers: Sequence[int], tell: bool = False) -> set[int]:
    """Which of some rules two gloo ranks show to be wrong."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/found"
        torch.multiprocessing.spawn(_shown, (f"{folder}/store", tuple(numbers), out, tell), nprocs=2)
        return set(map(int, Path(out).read_text(encoding="utf-8").split()))


def in_torch(rules: Mapping[int, PlacementRule]) -> dict[int, tuple[str, int]]:
    """What torch gives for every rule, on a process group that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {k: torch_gives(rule, mesh) for k, rule in rules.items()}
    dist.destroy_process_group()
    return found


def page(rules: Mapping[int, PlacementRule], only: str) -> str:
    """All as Markdown."""
    judged = {k: judge(rule.rule) for k, rule in rules.items()}
    shown_right = {k: j.rule.preconditions for k, j in judged.items() if isinstance(j, Proved)}
    needs = {k: [str(c) for c in cs if c not in rules[k].rule.preconditions] for k, cs in shown_right.items()}
    proved = {k for k, more in needs.items() if not more}
    refuted = {k for k, j in judged.items() if isinstance(j, Refuted)}
    torchs, shown = in_torch(rules), shown_on_ranks(sorted(refuted))
    right = {(rules[k].placed, rules[k].reads, rules[k].writes) for k in proved}
    word = dict[int, str]()
    for k in sorted(proved):
        text, moves = torchs[k]
        taken = not moves and text in _said(rules[k].placed)
        word[k] = "missing" if not taken else "in torch" if text == rules[k].writes else "otherwise"
    claims = {(r.placed, r.reads): torchs[k] for k, r in rules.items()}
    wrong = [
        (placed, reads, text)
        for (placed, reads), (text, moves) in claims.items()
        if not moves and text in _said(placed) and not any((placed, r, text) in right for r in _sliced(placed, reads))
    ]
    command = "`python tests/benchmarks/dtensor_rules.py" + (f" --only '{only}'" if only != "*" else "") + "`"
    lines = [
        "# Placements of DTensor on operators",
        "",
        f"{command}: torch {torch.__version__.split('+')[0]}, two ranks, {SIZE} elements a dimension.",
        "",
        "| operator | ranks | rules | proved | in torch | otherwise | missing | refuted | on ranks | some sizes | open |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    total = Counter[str]()
    for placed in dict.fromkeys(r.placed for r in rules.values()):
        own = [k for k, r in rules.items() if r.placed == placed]
        row = Counter(rules=len(own), proved=len(proved & {*own}), refuted=len(refuted & {*own}))
        row.update(word[k] for k in own if k in word)
        row["on ranks"] = len(shown & {*own})
        row["some sizes"] = sum(bool(needs.get(k)) for k in own)
        row["open"] = row["rules"] - row["proved"] - row["refuted"] - row["some sizes"]
        total.update(row)
        lines.append(f"| {placed.name} | {', '.join(map(str, placed.ranks))} | {_cells(row)} |")
    lines += [f"| all | | {_cells(total)} |", "", "## Proved, and missing in torch's table", ""]
    lines += [f"- {rules[k].rule.name}" for k in sorted(proved) if word[k] == "missing"] or ["None."]
    lines += ["", "## In torch's table, and not proved", ""]
    lines += [f"- {placed.name}: {', '.join(reads)} -> {text}" for placed, reads, text in wrong] or ["None."]
    lines += ["", "## In torch's table, of placements that no rule states", ""]
    other = [
        f"- {placed.name}: {', '.join(reads)} -> {text}"
        for (placed, reads), (text, moves) in claims.items()
        if not moves and "Partial(" in text and text != PARTIAL
    ]
    lines += other or ["None."]
    lines += ["", "## Refuted, and not shown by these numbers on ranks", ""]
    lines += [f"- {rules[k].rule.name}" for k in sorted(refuted - shown)] or ["None."]
    lines += ["", "## Proved of some sizes only", ""]
    lines += [f"- {rules[k].rule.name}: if {', '.join(more)}" for k, more in needs.items() if more] or ["None."]
    lines += ["", "## Open", ""]
    lines += [f"- {rules[k].rule.name}" for k in sorted({*rules} - needs.keys() - refuted)] or ["None."]
    return "\n".join(lines) + "\n"


def _sliced(placed: Placed, reads: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The placements of operands, and those into which a rank can take them by itself, as it has replicas whole."""
    yield from product(*(placements(n) if p == REPLICATE else (p,) for n, p in zip(placed.ranks, reads, strict=True)))


def _said(placed: Placed) -> set[str]:
    return {REPLICATE, PARTIAL, *(f"Shard({d})" for d in range(placed.rank))}


def _cells(row: Mapping[str, int]) -> str:
    names = ("rules", "proved", "in torch", "otherwise", "missing", "refuted", "on ranks", "some sizes", "open")
    return " | ".join(str(row.get(n, 0)) for n in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*")
    parser.add_argument("--show", type=int)
    given = parser.parse_args()
    every = dict(enumerate(placement_rules()))
    if given.show is not None:
        print(every[given.show].rule.name, flush=True)
        print("shown to be wrong" if shown_on_ranks([given.show], True) else "equal")
        return 0
    text = page({k: r for k, r in every.items() if fnmatch(r.placed.aten, given.only)}, given.only)
    PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
