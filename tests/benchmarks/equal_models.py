"""How long it takes to prove that tensor parallel transformers compute what one device does, by layers and ranks.

    python tests/benchmarks/equal_models.py [--models gpt,llama,qwen] [--layers 1,2,4,8] [--ranks 2,4,8] [--page]

A GPT (layer norm, learnt positions, GELU), a Llama (RMS norm, rotary positions, SwiGLU, two queries per key head) and a
Qwen (a Llama with biases, and norms of every query and key head), as people write them with `torch.distributed`: a column
and a row parallel product per block, embedding and loss split by vocabulary; on 8 ranks each has one key head.  Outputs
and all gradients; a wrong variant of each (one gradient is not summed) must be different.  Rows that a run is not about
stay on the page.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import equality_pairs as pairs
from kept_rows import with_kept_rows

from shardproof.formal.equality.question import ProgramWithSources, Question
from shardproof.models.sources.distributed.capture import capture
from shardproof.proofs.equality.file import write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair

PAGE = Path(__file__).resolve().parent / "results" / "equal-models.md"
B, S, D, HEADS, V = 2, 8, 4, 16, 32
H = D * HEADS
FF = 4 * H


UNUSED = {
    "gpt": ("bq", "bk", "bv", "gq", "gk", "gate"),
    "llama": ("b", "b1", "b2", "pos", "bup", "bdown", "bq", "bk", "bv", "gq", "gk"),
    "qwen": ("b", "b1", "b2", "pos", "bup", "bdown"),
}
"""Weights that a model does not have."""


def weights(kind: str, layers: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g) / math.sqrt(shape[0])

    found = {"emb": draw(V, H), "g": draw(H), "b": draw(H), "pos": draw(S, H)}
    kv = H if kind == "gpt" else H // 2
    for i in range(layers):
        found |= {f"{i}.g1": draw(H), f"{i}.b1": draw(H), f"{i}.g2": draw(H), f"{i}.b2": draw(H)}
        found |= {f"{i}.wq": draw(H, H), f"{i}.wk": draw(H, kv), f"{i}.wv": draw(H, kv), f"{i}.wo": draw(H, H)}
        found |= {f"{i}.up": draw(H, FF), f"{i}.gate": draw(H, FF), f"{i}.down": draw(FF, H)}
        found |= {f"{i}.bup": draw(FF), f"{i}.bdown": draw(H)}
        found |= {f"{i}.bq": draw(H), f"{i}.bk": draw(kv), f"{i}.bv": draw(kv), f"{i}.gq": draw(D), f"{i}.gk": draw(D)}
    return found


def norm(kind: str, x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if kind == "gpt":
        return F.layer_norm(x, (x.shape[-1],), g, b)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g


class Mean(torch.autograd.Function):
    """The sum over replicas forwards, identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=pairs.GROUPS["data"])
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


def summed(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient, over replicas."""
    gradient = gradient.clone()
    dist.all_reduce(gradient, group=pairs.GROUPS["data"])
    return gradient


def model(
    kind: str, layers: int, rank: int = 0, world: int = 1, wrong: bool = False, data: int = 1, batch: int = B
) -> Any:
    """`data` replicas of world / data ranks each, neighbours being of one replica; `batch` of all."""
    ranks, replica = world // data, rank // (world // data)
    pairs.GROUPS.clear()
    if data > 1:
        pairs.GROUPS["tensor"] = dist.new_group(list(range(replica * ranks, replica * ranks + ranks)))
        pairs.GROUPS["data"] = dist.new_group(list(range(rank % ranks, world, ranks)))
    rank %= ranks
    p = {k: v.clone() for k, v in weights(kind, layers).items()}
    for k, value in list(p.items()):
        name = k.rpartition(".")[2]
        if name in ("wq", "wk", "wv", "up", "gate", "bup", "bq", "bk", "bv"):
            p[k] = value.chunk(ranks, -1)[rank].clone()
        elif name in ("wo", "down") or k == "emb":
            p[k] = value.chunk(ranks, 0)[rank].clone()
        p[k].requires_grad_(name not in UNUSED[kind])
        if data > 1 and p[k].requires_grad:
            p[k].register_hook(summed)
    enter = (lambda x: x) if ranks == 1 else pairs.Copy.apply
    leave = (lambda x: x) if ranks == 1 else pairs.Reduce.apply
    first = V // ranks * rank

    def embed(ids: torch.Tensor) -> torch.Tensor:
        if ranks == 1:
            return F.embedding(ids, p["emb"])
        mask = (ids < first) | (ids >= first + V // ranks)
        local = torch.where(mask, 0, ids - first)
        return leave(F.embedding(local, p["emb"]).masked_fill(mask[..., None], 0.0))

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), S, -1, D).transpose(1, 2)

    def f(ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = embed(ids)
        if kind == "gpt":
            x = x + p["pos"]
        for i in range(layers):
            h = enter(norm(kind, x, p[f"{i}.g1"], p[f"{i}.b1"]))
            q, k, v = (h @ p[f"{i}.w{n}"] + (p[f"{i}.b{n}"] if kind == "qwen" else 0) for n in "qkv")
            q, k, v = heads(q), heads(k), heads(v)
            if kind == "qwen":  # their weights are on every rank: gradients are summed
                q, k = (norm(kind, t, enter(p[f"{i}.g{n}"]), t) for t, n in ((q, "q"), (k, "k")))
            if kind != "gpt":
                q, k = pairs.rotary(q, 0), pairs.rotary(k, 0)
                k, v = (t.repeat_interleave(2, 1) for t in (k, v))
            o = pairs.attend(q, k, v).transpose(1, 2).reshape(len(x), S, -1)
            x = x + leave(o @ p[f"{i}.wo"])
            h = norm(kind, x, p[f"{i}.g2"], p[f"{i}.b2"])
            h = h if wrong and i == layers - 1 else enter(h)
            if kind == "gpt":
                x = x + leave(F.gelu(h @ p[f"{i}.up"] + p[f"{i}.bup"]) @ p[f"{i}.down"]) + p[f"{i}.bdown"]
            else:
                x = x + leave((F.silu(h @ p[f"{i}.gate"]) * (h @ p[f"{i}.up"])) @ p[f"{i}.down"])
        logits = (enter(norm(kind, x, p["g"], p["b"])) @ p["emb"].t()).view(len(x) * S, -1)
        if ranks == 1:
            return F.cross_entropy(logits, target.view(-1))
        loss = pairs.VocabularyLoss.apply(logits, target.view(-1), first, "right").mean()
        return loss if data == 1 else Mean.apply(loss / data)

    g = torch.Generator().manual_seed(2)
    ids, target = (torch.randint(0, V, (batch, S), generator=g) for _ in range(2))
    return f, (ids.chunk(data)[replica].clone(), target.chunk(data)[replica].clone())


def judge(kind: str, layers: int, ranks: int, gradients: bool, wrong: bool) -> tuple[str, dict[str, float], int]:
    """Verdict, processor seconds of parts, bytes of the file."""
    clock, spent = time.process_time(), {}

    def lap(name: str) -> None:
        nonlocal clock
        spent[name], clock = time.process_time() - clock, time.process_time()

    one = capture(lambda: model(kind, layers), None, 1, gradients)
    many = [capture(lambda r, n: model(kind, layers, r, n, wrong), r, ranks, gradients) for r in range(ranks)]
    lap("capture")
    question = Question(
        ProgramWithSources(one.program, one.arrays), [ProgramWithSources(m.program, m.arrays) for m in many]
    )
    found = question.differs(0)
    lap("numbers")
    if found is not None:
        return f"different: {found.output} of rank {found.rank}", spent, 0
    pair = question.pair()
    data = write_equality(pair)
    lap("relations")
    result = check_pair(pair, Budget.with_large())
    lap("check")
    return ("equal" if result.verdict.value == "proved" else f"undecided: {result.reason}"), spent, len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="gpt,llama,qwen")
    parser.add_argument("--layers", default="1,2,4,8")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    lines = [
        "| model | layers | ranks | verdict | capture, s | numbers, s | relations, s | check, s | file, kB | wrong variant |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    print("\n".join(lines))
    for kind in asked.models.split(","):
        for layers in map(int, asked.layers.split(",")):
            for ranks in map(int, asked.ranks.split(",")):
                verdict, spent, size = judge(kind, layers, ranks, True, False)
                bad = judge(kind, layers, ranks, True, True)[0]
                parts = " | ".join(f"{spent.get(k, 0):.1f}" for k in ("capture", "numbers", "relations", "check"))
                lines.append(f"| {kind} | {layers} | {ranks} | {verdict} | {parts} | {size / 1e3:.0f} | {bad} |")
                print(lines[-1], flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if asked.page:
        words = f"`python tests/benchmarks/equal_models.py --page`, or in pieces: outputs and all gradients, {HEADS} heads of"
        words += f" {D}, {S} positions, vocabulary {V}; processor seconds of all threads; kB of the certificate."
        text = "\n".join([f"# {__doc__.splitlines()[0]}", "", words, "", *with_kept_rows(PAGE, lines, 3)])
        PAGE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
