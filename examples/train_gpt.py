"""A small GPT, trained as planned: plan, count what the job will send, apply, three steps of Adam on every rank.

    python examples/train_gpt.py --ranks 2 --steps 3

Text is this file, a character a token; ranks are processes on this computer (gloo).  On GPUs: `torchrun`, the backend
`nccl`, a machine file of your cluster.  At the end the losses are those of one process, or this script fails.
"""

import argparse
import math
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import shardproof

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 32, 8
TEXT = Path(__file__).read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(WIDTH, dim=-1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS), bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(LENGTH, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made() -> GPT:
    """The same weights in every process."""
    torch.manual_seed(0)
    return GPT()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same batch on every rank: inputs of a planned module are whole tensors."""
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(TEXT) - LENGTH - 1, (BATCH,), generator=draw).tolist()
    numbers = {letter: i for i, letter in enumerate(LETTERS)}
    rows = torch.tensor([[numbers[c] for c in TEXT[s : s + LENGTH + 1]] for s in starts])
    return rows[:, :-1], rows[:, 1:]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Losses; nothing in here knows of the plan."""
    losses = []
    for step in range(steps):
        tokens, wanted = batch(step)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rank(number: int, ranks: int, folder: str, steps: int, queue: "mp.SimpleQueue") -> None:
    """One rank of the job."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=ranks)
    plan = shardproof.load(Path(folder) / "gpt.spz")  # checked again, by every rank
    model = shardproof.torch.apply(plan, made())  # the job is one line longer
    optimizer = shardproof.torch.optimizer(plan, model, model.functions.mesh, torch.optim.Adam, lr=1e-3)
    losses = train(model, optimizer, steps)
    if number == 0:
        queue.put(losses)
    dist.destroy_process_group()


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--steps", type=int, default=3)
    given = asked.parse_args()
    tokens, _ = batch(0)
    plan = shardproof.plan(
        made(), f"localhost:{given.ranks}", inputs=(tokens,), train="adam:rate=1e-3", vocabulary="dtensor"
    )
    print(plan)
    print("head.weight", plan.layouts["head.weight"], "| up", plan.layouts["blocks.0.up.weight"])
    counted = shardproof.torch.verify(plan, made(), (tokens,))
    equal = sum(row.verdict == "equal" for row in counted.rows)
    print(f"{equal} of {len(counted.rows)} places send what is planned")
    print(f"{counted.received_bytes} bytes are received, {counted.planned_bytes} planned")
    alone = made()
    expected = train(alone, torch.optim.Adam(alone.parameters(), lr=1e-3), given.steps)
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "gpt.spz")
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(rank, (given.ranks, folder, given.steps, queue), nprocs=given.ranks)
        losses = queue.get()
    for step, (loss, one) in enumerate(zip(losses, expected, strict=True)):
        print(f"step {step}: loss {loss:.6f}, in one process {one:.6f}")
        assert math.isclose(loss, one, rel_tol=1e-4), "the planned job computes something else"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
