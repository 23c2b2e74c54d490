"""Shows how long exported files are, with equal layers said once and with every layer written out.

    python tests/benchmarks/export_sizes.py --write

Three training steps are planned (one placement per level, a gap of 5 %) and exported as a DTensor file, layouts alone,
and for JAX.  `layouts`: bytes of the file that say where tensors lie; the rest is the code that lays a model out.
`written out`: the same data with an entry for every layer, as files had it before.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import shardproof
from shardproof.api import Plan
from shardproof.backends.export.dtensor import export_dtensor
from shardproof.backends.export.jax import export_jax
from shardproof.backends.export.layers import every_layer

PAGE = Path(__file__).parent / "results" / "export-sizes.md"
GPT2 = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2(batch=8):
    tokens = torch.zeros(batch, 256, dtype=torch.long)
    return GPT2LMHeadModel(GPT2Config()), (), {"input_ids": tokens, "labels": tokens, "use_cache": False}
"""


def planned(model: str, machine: str, batch: int) -> Plan:
    return shardproof.plan(
        model,
        machine,
        train="adam",
        batch=batch,
        space_name="one-per-level",
        gap=Fraction(1, 20),
        time_limit_s=60,
        compare=False,
    )


NAMES = ("LAYOUTS", "PARAMETERS", "RESULTS", "SHARDY", "NOT_EXPRESSED")


def literals(text: str) -> list[object]:
    """What a file says of layouts, beside its code."""
    out: list[object] = []
    for node in ast.parse(text).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id in NAMES and value is not None:
            out.append(ast.literal_eval(value.args[0] if isinstance(value, ast.Call) else value))
    return out


def row(name: str, plan: Plan, target: str, text: str) -> str:
    said = literals(text)
    short, whole = (sum(len(repr(v)) for v in values) for values in (said, [every_layer(v) for v in said]))
    operators = len(plan.graph.operators)
    return f"| {name} | {operators:,} | {target} | {len(text):,} | {short:,} | {whole:,} | {whole / short:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    options = parser.parse_args()
    source = Path("/tmp") / "export_sizes_gpt2.py"
    source.write_text(GPT2)
    subjects = (
        ("llama-3-8b", "llama-3-8b", "dgx-h100:1x8", 8),
        ("GPT-2 of Hugging Face", f"{source}:gpt2", "dgx-a100:2x8", 8),
        ("bert-large", "bert-large", "dgx-a100:4x8", 8),
    )
    targets: tuple[tuple[str, Callable[[Plan], str]], ...] = (
        ("dtensor", lambda p: export_dtensor(p.bundle, p.identity, layouts_only=True).text),
        ("jax", lambda p: export_jax(p.bundle, p.identity).text),
    )
    rows = []
    for name, model, machine, batch in subjects:
        plan = planned(model, machine, batch)
        rows += [row(f"{name} on {machine}", plan, target, write(plan)) for target, write in targets]
    table = [
        "| step of Adam | operators | file | bytes | layouts | written out | times |",
        "|---|---:|---|---:|---:|---:|---:|",
        *rows,
    ]
    print("\n".join(table))
    if options.write:
        head = f"# Bytes of exported files\n\nMade by `python tests/benchmarks/export_sizes.py --write`. {ABOUT}\n\n"
        PAGE.write_text(head + "\n".join(table) + "\n", encoding="utf-8")


ABOUT = (
    "An exported file says layouts that are equal\nin many layers once (`layer{0..31}.ffn.up.weight`); the code in it "
    "writes them out. `layouts`: characters of that\ndata; `written out`: of the same data with an entry per layer, as "
    "files had it before; the rest of a file is the\ncode that lays a model out, the same for every plan."
)


if __name__ == "__main__":
    main()
