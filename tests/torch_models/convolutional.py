"""Convolution nets that people have, as plain PyTorch: blocks, depths and widths of the papers; `width` scales all
channels, `depth` cuts every stage to at most so many blocks.

Written here because the usual collection needs torchvision, which does not work beside PyTorch's CPU wheels.
Normalisation uses stored statistics, as at inference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]
Activation = Callable[[], nn.Module]


def unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Activation | None = nn.ReLU
) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *(() if act is None else (act(),)))


def _image(batch: int, size: int) -> tuple[Tensor, ...]:
    return (torch.zeros(batch, 3, size, size),)


class Head(nn.Module):  # type: ignore[misc]
    """Stages, the mean over the image, a dense layer."""

    def __init__(self, stages: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.stages, self.fc = stages, nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.stages(image), 1).flatten(1))


class Basic(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = unit(inputs, outputs, 3, stride), unit(outputs, outputs, 3, act=None)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else unit(inputs, outputs, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet18(batch: int = 8, size: int = 32, width: float = 1.0, depth: int = 1) -> Made:
    """ResNet-18, with up to `depth` of the two blocks of each of its four stages."""
    channels, stages = int(64 * width), list[nn.Module]()
    stages += [unit(3, channels, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage in range(4):
        outputs = int(64 * width) << stage
        for i in range(min(2, depth)):
            stages.append(Basic(channels, outputs, 1 + (stage > 0 and i == 0)))
            channels = outputs
    return Head(nn.Sequential(*stages), channels, 1000).eval(), _image(batch, size)


def vgg11(batch: int = 8, size: int = 32, width: float = 1.0) -> Made:
    """VGG-11 with biases instead of normalisation."""
    channels, stages = 3, list[nn.Module]()
    for row in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for wide in row:
            outputs = int(wide * width)
            stages += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
            channels = outputs
        stages.append(nn.MaxPool2d(2))
    rows = size // 32
    tail = [nn.Flatten(), nn.Linear(channels * rows**2, 1024), nn.ReLU(), nn.Linear(1024, 1000)]
    return nn.Sequential(*stages, *tail).eval(), _image(batch, size)


class Inverted(nn.Module):  # type: ignore[misc]
    """Expansion, depthwise convolution, gates of channels where asked for, projection; a sum where shapes agree."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, times: int, act: Activation, gates: int
    ) -> None:
        super().__init__()
        inner = inputs * times
        parts = [] if times == 1 else [unit(inputs, inner, 1, act=act)]
        parts.append(unit(inner, inner, kernel, stride, inner, act))
        if gates:
            parts.append(Gates(inner, max(1, inputs // gates), act))
        self.body = nn.Sequential(*parts, unit(inner, outputs, 1, act=None))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class Gates(nn.Module):  # type: ignore[misc]
    """Squeeze and excitation: channels times what their means say."""

    def __init__(self, channels: int, inner: int, act: Activation) -> None:
        super().__init__()
        self.down, self.up, self.act = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1), act()

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(self.act(self.down(F.adaptive_avg_pool2d(x, 1)))))


def _inverted(
    stem: int, rows: tuple[tuple[int, int, int, int, int], ...], act: Activation, gates: int, depth: int
) -> tuple[list[nn.Module], int]:
    channels, stages = stem, [unit(3, stem, 3, 2, act=act)]
    for times, outputs, count, stride, kernel in rows:
        for i in range(min(count, depth)):
            stages.append(Inverted(channels, outputs, kernel, stride if i == 0 else 1, times, act, gates))
            channels = outputs
    return stages, channels


def mobilenet_v2(batch: int = 8, size: int = 32, depth: int = 1) -> Made:
    """MobileNetV2."""
    rows = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3))
    stages, channels = _inverted(32, (*rows, (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)), nn.ReLU6, 0, depth)
    stages.append(unit(channels, 1280, 1, act=nn.ReLU6))
    return Head(nn.Sequential(*stages), 1280, 1000).eval(), _image(batch, size)


def efficientnet_b0(batch: int = 8, size: int = 32, depth: int = 1) -> Made:
    """EfficientNet-B0."""
    rows = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5))
    stages, channels = _inverted(32, (*rows, (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)), nn.SiLU, 4, depth)
    stages.append(unit(channels, 1280, 1, act=nn.SiLU))
    return Head(nn.Sequential(*stages), 1280, 1000).eval(), _image(batch, size)


class Towers(nn.Module):  # type: ignore[misc]
    """GoogLeNet's block: three chains of convolutions and a pool, side by side."""

    def __init__(self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> None:
        super().__init__()
        self.one = unit(inputs, one, 1)
        self.three = nn.Sequential(unit(inputs, three[0], 1), unit(three[0], three[1], 3))
        self.five = nn.Sequential(unit(inputs, five[0], 1), unit(five[0], five[1], 3))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


def googlenet(batch: int = 8, size: int = 32) -> Made:
    """GoogLeNet, without its auxiliary heads, the first two of its nine blocks."""
    rows = ((64, (96, 128), (16, 32), 32), (128, (128, 192), (32, 96), 64))
    stages = [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), unit(64, 64, 1), unit(64, 192, 3)]
    channels = 192
    for one, three, five, pooled in rows:
        stages.append(Towers(channels, one, three, five, pooled))
        channels = one + three[1] + five[1] + pooled
    return Head(nn.Sequential(*stages), channels, 1000).eval(), _image(batch, size)


class Fire(nn.Module):  # type: ignore[misc]
    """SqueezeNet's block: a narrow convolution read by two, side by side."""

    def __init__(self, inputs: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, narrow, 1)
        self.one, self.three = nn.Conv2d(narrow, wide, 1), nn.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


def squeezenet(batch: int = 8, size: int = 32) -> Made:
    """SqueezeNet 1.1."""
    pool = nn.MaxPool2d(3, 2)
    stages = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool, Fire(64, 16, 64), Fire(128, 16, 64), pool]
    stages += [Fire(128, 32, 128), Fire(256, 32, 128), pool, Fire(256, 48, 192), Fire(384, 64, 256)]
    stages += [nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*stages).eval(), _image(batch, size)


class Dense(nn.Module):  # type: ignore[misc]
    """DenseNet's layer: what it makes stands beside what it read."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(inputs), nn.BatchNorm2d(4 * growth)
        self.one = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.three = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(F.relu(self.first(x)))
        return torch.cat([x, self.three(F.relu(self.second(y)))], 1)


def densenet(batch: int = 8, size: int = 32, depth: int = 1, growth: int = 32) -> Made:
    """DenseNet-121, up to `depth` layers in each of its four blocks."""
    stages, channels = [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for count in (6, 12, 24, 16):
        for _ in range(min(count, depth)):
            stages.append(Dense(channels, growth))
            channels += growth
        if count != 16:
            half = nn.Conv2d(channels, channels // 2, 1, bias=False)
            stages += [nn.BatchNorm2d(channels), nn.ReLU(), half, nn.AvgPool2d(2)]
            channels //= 2
    stages += [nn.BatchNorm2d(channels), nn.ReLU()]
    return Head(nn.Sequential(*stages), channels, 1000).eval(), _image(batch, size)


class Shuffle(nn.Module):  # type: ignore[misc]
    """ShuffleNet v2's block of stride 1: half of the channels pass by, then halves alternate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(unit(half, half, 1), unit(half, half, 3, 1, half, None), unit(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        passed, taken = x.chunk(2, 1)
        x = torch.cat([passed, self.body(taken)], 1)
        batch, channels, rows, columns = x.shape
        return x.view(batch, 2, channels // 2, rows, columns).transpose(1, 2).reshape(x.shape)


def shufflenet(batch: int = 8, size: int = 32) -> Made:
    """ShuffleNet v2: a stem, and a block of stride 1 behind each of two convolutions that halve the image."""
    stages, channels = [unit(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)], 24
    for outputs, count in ((116, 1), (232, 1)):
        stages += [unit(channels, outputs, 3, 2), *(Shuffle(outputs) for _ in range(count))]
        channels = outputs
    return Head(nn.Sequential(*stages), channels, 1000).eval(), _image(batch, size)


class Unet(nn.Module):  # type: ignore[misc]
    """Down by pools, up by transposed convolutions, with what lies across beside it."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(nn.Sequential(unit(a, b, 3), unit(b, b, 3)) for a, b in pairs)
        back = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in back)
        self.joined = nn.ModuleList(nn.Sequential(unit(2 * b, b, 3), unit(b, b, 3)) for _, b in back)
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = list[Tensor]()
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else F.max_pool2d(x, 2))
            across.append(x)
        across.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([across.pop(), up(x)], 1))
        return self.out(x)


def unet(batch: int = 8, size: int = 32) -> Made:
    """U-Net with three levels."""
    return Unet((32, 64, 128), 4).eval(), _image(batch, size)


NETS = (
    resnet18,
    vgg11,
    mobilenet_v2,
    efficientnet_b0,
    googlenet,
    squeezenet,
    densenet,
    shufflenet,
    unet,
)
"""Nine of them."""
