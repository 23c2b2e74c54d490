"""Plans of small decoders with drawn placements and any recipe, exported, for the tests of exported programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from test_run import draw_choices

from shardproof.backends.export.dtensor import export_dtensor
from shardproof.models.communication.choices import Choices
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.training.accumulation import accumulate
from shardproof.proofs.plan.bundle import Plan

HERE = Path(__file__).parent
MODEL = HERE / "torch_models" / "program.py"

OPTIMIZERS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "sgd:rate=0.1,momentum=0.9,nesterov=1,decay=0.01": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        None,
    ),
    "adam:rate=0.01,epsilon=0.001,decay=0.1": (
        "Adam",
        {"lr": 0.01, "betas": [0.9, 0.999], "eps": 0.001, "weight_decay": 0.1},
        None,
    ),
    "adamw:rate=0.01,beta1=0.8,epsilon=0.001,clip=0.5": (
        "AdamW",
        {"lr": 0.01, "betas": [0.8, 0.999], "eps": 0.001, "weight_decay": 0.01},
        0.5,
    ),
    "rmsprop:beta2=0.9,momentum=0.5,epsilon=0.01": (
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "eps": 0.01, "momentum": 0.5, "weight_decay": 0.0},
        None,
    ),
    "adagrad:epsilon=0.01": ("Adagrad", {"lr": 0.01, "eps": 0.01, "weight_decay": 0.0}, None),
}
PRECISIONS = (None, "bf16-mixed", "bf16-master", "bf16-master:reduce=bfloat16")
BLOCKS = ("none", "blocks.1", "all")
MICRO = ((1, 1), (2, 1), (4, 2))
ATTENTION = ("operator", "fused", "matrices")


@dataclass(frozen=True)
class Case:
    """What is planned."""

    precision: str | None = None
    recompute: str = "none"
    micro: tuple[int, int] = (1, 1)
    optimizer: str = "sgd:rate=0.1,momentum=0.9,nesterov=1,decay=0.01"
    attention: str = "operator"
    kind: str = "inside"

    @property
    def rule(self) -> str | None:
        """How types are chosen."""
        return None if self.precision is None else self.precision.partition("-")[2].partition(":")[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """Blocks that are computed again."""
        return {"none": (), "all": ("blocks.0", "blocks.1")}.get(self.recompute, (self.recompute,))


@cache
def forward(kind: str, attention: str) -> Graph:
    """The program as it is imported."""
    sys.path.insert(0, str(MODEL.parent))
    try:
        import program as made
    finally:
        sys.path.pop(0)
    from shardproof.models.sources.building.attention import with_fused_gradients
    from shardproof.models.sources.torch.importer import convert
    from shardproof.models.sources.torch.program import build

    graph = convert(build(lambda: made.net(kind), "m", attention=attention != "matrices")).graph
    return with_fused_gradients(graph) if attention == "fused" else graph


def planned_step(case: Case) -> Graph:
    """The step of a case, without placements."""
    graph = forward(case.kind, case.attention)
    loss = "squared-error" if case.kind == "numbers" else None
    step = build_step(graph, case.optimizer, loss, None, case.recompute, case.precision)
    return accumulate(step, *case.micro).graph


def drawn(case: Case, seed: int, ranks: int = 2) -> Plan:
    """A plan with placements that are drawn: any is a plan, if not a good one.

    With one seed, cases that differ in their recomputed blocks place alike what they have in common.
    """
    made, machine = planned_step(case), load_machine(f"localhost:{ranks}")
    choices = draw_choices(made, machine.hierarchy, np.random.default_rng(seed))
    if case.recompute != "all":
        widest = planned_step(replace(case, recompute="all"))
        common = draw_choices(widest, machine.hierarchy, np.random.default_rng(seed))
        operators, copies = dict(common.operators), dict(common.copies)
        choices = Choices(
            tuple((name, operators.get(name, p)) for name, p in choices.operators),
            tuple((name, copies.get(name, p)) for name, p in choices.copies),
        )
    return Plan(made, machine, "complete,uneven", None, choices, (), None, ())  # type: ignore[arg-type]


def ran(
    cases: list[Case], folder: Path, ranks: int = 2, timeout: float = 550, seeds: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """What the jobs of the cases' files did, one process group for all.  `seeds`: of placements, else the numbers."""
    given = []
    for i, case in enumerate(cases):
        file = folder / f"case{i}.py"
        file.write_text(export_dtensor(drawn(case, seeds[i] if seeds else i, ranks), "0" * 64).text)
        optimizer, numbers, clip = OPTIMIZERS[case.optimizer]
        given.append(
            {"file": str(file), "kind": case.kind, "rule": case.rule, "optimizer": optimizer, "numbers": numbers,
             "clip": clip}
        )  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(given))
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(HERE / "program_job.py"),
            str(MODEL),
            str(ranks),
            str(folder / "cases.json"),
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (told[-1:], done.stderr[-1500:])
    return told


def differences(case: Case, told: dict[str, Any], again: int = 2) -> list[str]:
    """Where a job did not do what was planned; `again`: calls of a module in a recomputed block, per micro-batch."""
    out = []
    optimizer, numbers, _ = OPTIMIZERS[case.optimizer]

    def same(what: str, have: object, want: object) -> None:
        if have != want:
            out.append(f"{what}: {have}, planned {want}")

    same("optimizer", told["optimizer"], optimizer)
    same("numbers", told["numbers"], numbers)
    same("stored", told["stored"], ["float32"])
    same("moments", told["moments"], ["float32"])
    norms = "float32" if case.rule != "master" else "bfloat16"
    for name, dtype in told["types"].items():
        wide = any(part.startswith(("n1", "n2", "norm", "embed")) for part in name.split("."))
        want = "float32" if case.rule is None else norms if wide else "bfloat16"
        same(f"type of {name}", dtype, want)
    for name, calls in told["first"].items():
        # the last module of a block gives what the block keeps: torch stops recomputing before it
        inside = any(name.startswith(f"{b}.") for b in case.blocks) and not name.endswith("f2")
        same(f"calls of {name}", calls, case.micro[0] * (again if inside else 1))
    if case.kind != "numbers":
        flash = sum(n for k, n in told["kernels"].items() if k == "_scaled_dot_product_flash_attention_for_cpu")
        calls = case.micro[0] * (2 + len(case.blocks))
        same("calls of the kernel that stores no scores", flash, 0 if case.attention == "matrices" else calls)
    near = 1e-4 if case.rule is None else 0.05
    if told["apart"] > near or not told["moved"]:
        out.append(f"weights: {told['apart']} apart from one process")
    for a, b in told["losses"]:
        if not abs(a - b) < (1e-5 if case.rule is None else 0.03) * abs(a):
            out.append(f"losses {a} {b}")
    return out


def with_(case: Case, **changes: Any) -> Case:
    """The case with other values."""
    return replace(case, **changes)
