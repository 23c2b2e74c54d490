"""Published settings of large models beside what is optimal: `audit --strategy` on the machines they ran on.

    python tests/benchmarks/published_strategies.py [--only NAME ..] [--seconds 300] [--results FILE.json]

Every row is a configuration that NVIDIA publishes with its step time (github.com/NVIDIA/dgxc-benchmarking, tag v25.04,
MIT: NeMo 24.12 or 25.02 on DGX H100).  What is audited is one micro-batch of one optimizer step: the zoo's model in bfloat16
with float32 master weights and AdamW, on as many nodes as one pipeline stage has, with its share of the layers (embedding and
head are in that share, which makes a stage heavier than it is).  The measured step divided by its micro-batches is beside it;
where there are pipeline stages this is longer than a stage's own time, by the bubble.

The results are a table on standard output; each audit is `shardproof audit GRAPH --strategy FLAGS --json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """`sizes`: options of the zoo model `model` with all its layers; degrees as Megatron has them; `step`: measured seconds."""

    name: str
    model: str
    sizes: Mapping[str, int | str]
    layers: str
    gpus: int
    tp: int
    pp: int
    cp: int
    global_batch: int
    step: float
    memory: str = "80GiB"

    @property
    def dp(self) -> int:
        """Copies, each of which takes one sequence at a time."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def micro_batches(self) -> int:
        """Of one step."""
        return self.global_batch // self.dp

    @property
    def flags(self) -> str:
        """Megatron's, of one stage."""
        text = f"--tensor-model-parallel-size {self.tp} --context-parallel-size {self.cp} --use-distributed-optimizer"
        return text + (" --sequence-parallel" if self.tp > 1 else "")


ROWS: Final = (
    Row("llama-3.1-8b on 8", "llama-3-8b", {}, "layers", 8, 1, 1, 2, 128, 12.27),
    Row("llama-3.1-8b on 64", "llama-3-8b", {}, "layers", 64, 1, 1, 2, 1024, 12.33),
    Row(
        "gpt-3-175b on 128, a stage",
        "gpt-3-175b",
        {"vocabulary": 51200},
        "depth",
        128,
        4,
        8,
        1,
        256,
        8.309,
    ),
    Row("llama-3.1-70b on 128, a stage", "llama-3-70b", {}, "layers", 128, 4, 4, 2, 256, 14.67),
)
LAYERS: Final = {"llama-3.1-8b": 32, "gpt-3-175b": 96, "llama-3.1-70b": 80}


def audited(row: Row, seconds: int) -> dict[str, object]:
    """What `audit` says, as its JSON."""
    whole = LAYERS[row.name.split()[0]]
    sizes = {**row.sizes, "batch": row.dp, row.layers: whole // row.pp}
    graph = build(row.model, **sizes)
    step = build_step(graph, "adamw", precision="bf16-master").graph
    per_stage = row.gpus // row.pp
    with tempfile.TemporaryDirectory() as folder:
        model, flags = Path(folder) / "step.json", Path(folder) / "flags.txt"
        model.write_text(step.to_json())
        flags.write_text(row.flags)
        machine = f"dgx-h100:{per_stage // 8}x8"
        line = ["audit", str(model), "--strategy", str(flags), "--machine", machine, "--memory", row.memory]
        line += ["--space", "two-per-level", "--gap", "0.03", "--time-limit", str(seconds), "--json"]
        done = subprocess.run([sys.executable, "-m", "shardproof", *line], capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return {"error": done.stderr.strip()[:600]}
    said = json.loads(done.stdout)
    kept = ("outcome", "strategy_status", "strategy_cost", "strategy_lower_bound", "best_cost", "lower_bound", "error")
    return {**{k: said[k] for k in kept if k in said}, "machine": machine, "operators": len(step.operators)}


def main() -> None:
    """Audit the rows asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    for row in ROWS:
        if given.only and not any(row.name.startswith(n) for n in given.only):
            continue
        found = audited(row, given.seconds)
        if given.results is not None:
            known = json.loads(given.results.read_text()) if given.results.exists() else {}
            given.results.write_text(json.dumps({**known, row.name: found}, indent=1, sort_keys=True) + "\n")
        measured = f"measured {1000 * row.step / row.micro_batches:.0f} ms per micro-batch of {row.dp} sequences"
        print(row.name, json.dumps(found), measured, flush=True)


if __name__ == "__main__":
    main()
