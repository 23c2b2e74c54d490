"""AlexNet, residual networks, Inception-v3 and the vision transformer as plain PyTorch; sizes and defaults follow
`models/sources/zoo`.

Written here because the usual collections of convolution nets need torchvision, which does not work beside PyTorch's
CPU wheels.  Normalisation uses the statistics of the batch (training) or stored ones (`frozen`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from language import Attention, FeedForward
from torch import Tensor, nn


class AlexNet(nn.Module):
    """One tower; `width` channels in the first convolution instead of 96."""

    def __init__(self, size: int, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        second, third, last = (max(1, channels * width // 96) for channels in (256, 384, 256))
        sizes = [
            (3, width, 11, 4, 0),
            (width, second, 5, 1, 2),
            (second, third, 3, 1, 1),
            (third, third, 3, 1, 1),
            (third, last, 3, 1, 1),
        ]
        convs = [nn.Conv2d(i, o, k, s, p) for i, o, k, s, p in sizes]
        pool = nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            convs[0],
            nn.ReLU(),
            pool,
            convs[1],
            nn.ReLU(),
            pool,
            convs[2],
            nn.ReLU(),
            convs[3],
            nn.ReLU(),
            convs[4],
            nn.ReLU(),
            pool,
        )
        rows = (size - 11) // 4 + 1
        for _ in range(3):  # pools
            rows = (rows - 3) // 2 + 1
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(last * rows**2, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.classifier(torch.flatten(self.features(image), 1)), dim=1)


def alexnet(
    batch: int = 128, size: int = 227, width: int = 96, hidden: int = 4096, classes: int = 1024, dtype: str = "float32"
):
    """AlexNet with PaSE's sizes."""
    module = AlexNet(size, width, hidden, classes).to(getattr(torch, dtype)).eval()
    return module, (torch.zeros(batch, 3, size, size, dtype=getattr(torch, dtype)),)


class ConvNorm(nn.Module):
    """Convolution, normalisation, and relu unless it is the last of a residual branch."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel,
        stride=1,
        pad=0,
        groups: int = 1,
        active: bool = True,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=groups, bias=False)
        self.norm, self.active = nn.BatchNorm2d(outputs, epsilon), active

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu(x) if self.active else x


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 beside a shortcut."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.reduce = ConvNorm(inputs, inner, 1)
        self.window = ConvNorm(inner, inner, 3, stride, 1, groups)
        self.expand = ConvNorm(inner, outputs, 1, active=False)
        self.shortcut = (
            ConvNorm(inputs, outputs, 1, stride, active=False) if stride > 1 or inputs != outputs else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.expand(self.window(self.reduce(x))) + self.shortcut(x))


class Residual(nn.Module):
    """A stem, stages of bottlenecks, the mean over the image, a dense layer."""

    def __init__(self, blocks: str, stem: int, groups: int, group_width: int, classes: int) -> None:
        super().__init__()
        self.stem, channels, stages = nn.Sequential(ConvNorm(3, stem, 7, 2, 3), nn.MaxPool2d(3, 2, 1)), stem, []
        for stage, count in enumerate(blocks.split("-")):
            for i in range(int(count)):
                outputs = 4 * stem << stage
                stages.append(
                    Bottleneck(channels, groups * group_width << stage, outputs, 1 + (stage > 0 and i == 0), groups)
                )
                channels = outputs
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.stages(self.stem(image)), 1).flatten(1))


def resnext50(
    batch: int = 1024,
    size: int = 224,
    blocks: str = "3-4-6-3",
    stem: int = 64,
    groups: int = 32,
    group_width: int = 4,
    classes: int = 1000,
    frozen: str = "no",
    dtype: str = "float32",
):
    """ResNeXt-50 32x4d."""
    module = Residual(blocks, stem, groups, group_width, classes).to(getattr(torch, dtype)).train(frozen == "no")
    return module, (torch.zeros(batch, 3, size, size, dtype=getattr(torch, dtype)),)


def resnet101(
    batch: int = 128,
    size: int = 227,
    blocks: str = "3-4-23-3",
    stem: int = 64,
    classes: int = 1000,
    frozen: str = "no",
    dtype: str = "float32",
):
    """ResNet-101."""
    module = Residual(blocks, stem, 1, stem, classes).to(getattr(torch, dtype)).train(frozen == "no")
    return module, (torch.zeros(batch, 3, size, size, dtype=getattr(torch, dtype)),)


class Inception(nn.Module):
    """Towers side by side; `width` channels in the first convolution instead of 32."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width, self.units = width, nn.ModuleDict()
        self.stem = self._chain(3, (32, 3, 2, 0), (32, 3, 1, 0), (64, 3, 1, 1))
        self.stem2 = self._chain(64, (80, 1, 1, 0), (192, 3, 1, 0))
        channels, self.blocks = 192, nn.ModuleList()
        for pooled in (32, 64, 64):
            self._tower(
                channels,
                [((64, 1, 1, 0),), ((48, 1, 1, 0), (64, 5, 1, 2)), ((64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 1, 1))],
                pooled,
            )
            channels = 224 + pooled
        self._tower(channels, [((384, 3, 2, 0),), ((64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 2, 0))], 0)
        channels += 480
        row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
        for n in (128, 160, 160, 192):
            twice = ((n, 1, 1, 0), (n, *column), (n, *row), (n, *column), (192, *row))
            self._tower(channels, [((192, 1, 1, 0),), ((n, 1, 1, 0), (n, *row), (192, *column)), twice], 192)
            channels = 768
        self._tower(
            channels,
            [((192, 1, 1, 0), (320, 3, 2, 0)), ((192, 1, 1, 0), (192, *row), (192, *column), (192, 3, 2, 0))],
            0,
        )
        channels += 512
        for _ in range(2):
            fork = [((384, (1, 3), 1, (0, 1)),), ((384, (3, 1), 1, (1, 0)),)]
            self._tower(
                channels, [((320, 1, 1, 0),), [((384, 1, 1, 0),), fork], [((448, 1, 1, 0), (384, 3, 1, 1)), fork]], 192
            )
            channels = 2048
        self.fc = nn.Linear(2 * self._scaled(384) * 2 + self._scaled(320) + self._scaled(192), classes)

    def _scaled(self, channels: int) -> int:
        return max(1, channels * self.width // 32)

    def _chain(self, inputs, *parts) -> nn.Sequential:
        units, channels = [], inputs if inputs == 3 or isinstance(inputs, str) else self._scaled(inputs)
        for outputs, kernel, stride, pad in parts:
            units.append(LazyUnit(self._scaled(outputs), kernel, stride, pad, channels))
            channels = self._scaled(outputs)
        return nn.Sequential(*units)

    def _tower(self, inputs: int, chains, pooled: int) -> None:
        total = getattr(self, "total", self._scaled(192))
        ways, size = nn.ModuleList(), 0
        for chain in chains:
            if isinstance(chain, list):
                first, fork = chain
                ways.append(
                    Fork(self._from(total, first), [self._from(self._scaled(first[-1][0]), side) for side in fork])
                )
                size += sum(self._scaled(side[-1][0]) for side in fork)
            else:
                ways.append(self._from(total, chain))
                size += self._scaled(chain[-1][0])
        self.blocks.append(Tower(ways, self._from(total, ((pooled, 1, 1, 0),)) if pooled else None))
        self.total = size + (self._scaled(pooled) if pooled else total)

    def _from(self, channels: int, parts) -> nn.Sequential:
        units = []
        for outputs, kernel, stride, pad in parts:
            units.append(LazyUnit(self._scaled(outputs), kernel, stride, pad, channels))
            channels = self._scaled(outputs)
        return nn.Sequential(*units)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(image), 3, 2)
        x = F.max_pool2d(self.stem2(x), 3, 2)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))


def LazyUnit(outputs: int, kernel, stride, pad, inputs: int) -> ConvNorm:
    """A normalised convolution with Inception's epsilon."""
    return ConvNorm(inputs, outputs, kernel, stride, pad, epsilon=1e-3)


class Fork(nn.Module):
    """A chain whose result goes into several, concatenated."""

    def __init__(self, first: nn.Module, sides: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.sides = first, nn.ModuleList(sides)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.cat([side(x) for side in self.sides], dim=1)


class Tower(nn.Module):
    """Ways side by side, and a pool: averaged and projected, or halved where there is no projection."""

    def __init__(self, ways: nn.ModuleList, project: nn.Module | None) -> None:
        super().__init__()
        self.ways, self.project = ways, project

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x, 3, 2) if self.project is None else self.project(F.avg_pool2d(x, 3, 1, 1))
        return torch.cat([*(way(x) for way in self.ways), pooled], dim=1)


def inception_v3(
    batch: int = 1024, size: int = 299, width: int = 32, classes: int = 1000, frozen: str = "no", dtype: str = "float32"
):
    """Inception-v3 without auxiliary head."""
    module = Inception(width, classes).to(getattr(torch, dtype)).train(frozen == "no")
    return module, (torch.zeros(batch, 3, size, size, dtype=getattr(torch, dtype)),)


class Vit(nn.Module):
    """Patches by a convolution, a class token, pre-norm encoder layers."""

    def __init__(self, size: int, patch: int, depth: int, width: int, heads: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, 1e-6) for _ in range(2 * depth + 1))
        self.attention = nn.ModuleList(Attention(width, heads, True, True) for _ in range(depth))
        self.ffn = nn.ModuleList(FeedForward(width, hidden, True, "gelu") for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for i, (attention, ffn) in enumerate(zip(self.attention, self.ffn, strict=True)):
            y = self.norms[2 * i](x)
            x = x + attention(y, y)
            x = x + ffn(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x)[:, 0])


def vit(
    batch: int = 4096,
    size: int = 224,
    patch: int = 16,
    depth: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    classes: int = 1000,
    dtype: str = "bfloat16",
):
    """ViT-Base/16."""
    module = Vit(size, patch, depth, width, heads, hidden, classes).to(getattr(torch, dtype)).eval()
    return module, (torch.zeros(batch, 3, size, size, dtype=getattr(torch, dtype)),)
