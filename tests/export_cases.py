"""Models of plain PyTorch, as text, and machines on which splitting them pays; made up for the tests of exporters."""

from __future__ import annotations

import ast
from typing import Any

from shardproof.backends.export.layers import every_layer

MLP = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32)), (torch.zeros(16, 32),)
"""

ATTENTION = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.f1, self.f2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (m(y).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5, -1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.f2(nn.functional.gelu(self.f1(self.n2(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(50, 32), Block(32, 4), nn.Linear(32, 50, bias=False)

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)))

def net():
    return Model(), (torch.zeros(8, 16, dtype=torch.long),)
"""

CONVOLUTIONS = """
import torch
from torch import nn

def net():
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                           nn.Flatten(), nn.Linear(8 * 64, 16))
    return layers, (torch.zeros(8, 3, 8, 8),)
"""

TRANSFORMER = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.f1, self.f2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (m(y).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5, -1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.f2(nn.functional.gelu(self.f1(self.n2(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(4))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def net():
    return Model(), (torch.zeros({batch}, 16, dtype=torch.long),)
"""
"""Four layers, as a text to format."""

MODELS = {"mlp": MLP, "attention": ATTENTION, "convolutions": CONVOLUTIONS}

MACHINE = """
name = "slow"

[[level]]
name = "node"
size = {nodes}
bandwidth = "1 GB/s"
latency = "1 us"

[[level]]
name = "gpu"
size = 2
bandwidth = "4 GB/s"
latency = "0.2 us"

[[device_class]]
name = "core"
memory = "1 GiB"
bandwidth = "5 GB/s"
[device_class.peaks]
float32 = "{rate} Gflop/s"
float64 = "{rate} Gflop/s"
int64 = "1 Gflop/s"
bool = "2 Gflop/s"

[sources]
"level.node" = "made up"
"level.gpu" = "made up"
"device_class.core" = "made up"
"""


def plan_data(text: str) -> dict[str, Any]:
    """What an exported file says of its plan, every layer written out; nothing of the file runs."""
    made = {
        node.target.id: node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    said: dict[str, Any] = ast.literal_eval(made["LAYOUTS"])
    return said if ast.unparse(made["PLAN"]) == "LAYOUTS" else every_layer(said)
