"""How long the host takes to issue a forward and a backward pass of a layer, in PyTorch without a graph.

    python tests/benchmarks/host_passes.py [--rounds 25] [--write]

Models of transformers, as wide as 16 and for four tokens, so that the processor spends its time on Python and on the dispatch
of operators and none on arithmetic.  A step of 24 layers less a step of 8, over 16: microseconds of the processor a layer,
the median over the rounds, one thread.  What is used of it is the ratio of the two passes
(`formal/plans/pipelines/composed.py`); how long a launch takes is another question, of another processor.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

TABLE = Path(__file__).resolve().parents[1] / "data" / "measured" / "host" / "passes.csv"
DEEP, SHALLOW, WARM = 24, 8, 5
WIDTH, HEADS, TOKENS = 16, 2, 4


def models() -> dict[str, Callable[[int], nn.Module]]:
    """Name -> what makes the model of so many layers."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH, "vocab_size": 32}
    return {
        "bert": lambda layers: BertModel(BertConfig(num_hidden_layers=layers, **sizes)),
        "gpt2": lambda layers: GPT2Model(GPT2Config(n_layer=layers, n_embd=WIDTH, n_head=HEADS)),
        "llama": lambda layers: LlamaModel(LlamaConfig(num_hidden_layers=layers, **sizes)),
    }


def passes(model: nn.Module, rounds: int) -> tuple[float, float]:
    """Seconds of the processor, forward and backward."""
    model.train()
    tokens = torch.arange(TOKENS)[None] % 32
    forward, backward = [], []
    for k in range(WARM + rounds):
        start = time.process_time()
        loss = model(input_ids=tokens).last_hidden_state.sum()
        between = time.process_time()
        loss.backward()
        end = time.process_time()
        if k >= WARM:
            forward.append(between - start)
            backward.append(end - between)
    return median(forward), median(backward)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--write", action="store_true", help="write tests/data/measured/host/passes.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, make in models().items():
        deep, shallow = (passes(make(layers), given.rounds) for layers in (DEEP, SHALLOW))
        each = [(a - b) / (DEEP - SHALLOW) * 1e6 for a, b in zip(deep, shallow, strict=True)]
        rows.append((name, *(round(x, 1) for x in each)))
    with TABLE.open("w", newline="", encoding="utf-8") if given.write else sys.stdout as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(("model", "forward_us", "backward_us"))
        table.writerows(rows)


if __name__ == "__main__":
    main()
