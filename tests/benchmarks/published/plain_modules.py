"""Modules that people write themselves in plain PyTorch: recurrent, convolutional, graph, set, operator, ranking models."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from entries import Architecture, Built, Loss, classified, ids, regressed
from torch import Tensor, nn
from torch.nn import functional

RECURRENT, GRAPH, PICTURE, RANKING, SCIENCE, LANGUAGE = (
    "recurrent",
    "graph network",
    "generative",
    "recommendation",
    "science",
    "language",
)


def _entry(
    family: str, title: str, module: type[nn.Module], loss: Loss | None = None, **inputs: object
) -> Architecture:
    def build() -> Built:
        return module(), {k: v.clone() for k, v in inputs.items() if isinstance(v, Tensor)}

    return Architecture(family, title, build, loss)


def _x(*shape: int) -> Tensor:
    return torch.zeros(shape)


class Perceptron(nn.Sequential):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Recurrent(nn.Module):
    """A language model around a recurrent layer."""

    kind: type[nn.RNNBase] = nn.LSTM
    bidirectional = False

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10000, 512)
        self.layers = self.kind(512, 512, num_layers=2, batch_first=True, bidirectional=self.bidirectional)
        self.head = nn.Linear(1024 if self.bidirectional else 512, 10000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens))[0]).transpose(1, 2)


class Gated(Recurrent):
    """GRU."""

    kind = nn.GRU


class Simple(Recurrent):
    """Elman network."""

    kind = nn.RNN


class BothWays(Recurrent):
    """Bidirectional LSTM."""

    bidirectional = True


class Cells(nn.Module):
    """An LSTM cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(256, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        h, c = x.new_zeros(x.shape[0], 512), x.new_zeros(x.shape[0], 512)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Attended(nn.Module):
    """Recurrent encoder and decoder with additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8000, 256)
        self.reader, self.writer = nn.GRU(256, 256, batch_first=True), nn.GRU(256, 256, batch_first=True)
        self.query, self.key, self.score = nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 1)
        self.head = nn.Linear(512, 8000)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        read = self.reader(self.embed(source))[0]
        written = self.writer(self.embed(target_in))[0]
        scores = self.score(torch.tanh(self.query(written)[:, :, None] + self.key(read)[:, None])).squeeze(-1)
        seen = torch.einsum("bts,bsd->btd", scores.softmax(-1), read)
        return self.head(torch.cat([written, seen], -1)).transpose(1, 2)


class Causal(nn.Module):
    """nanoGPT: the attention of minGPT, tied embeddings."""

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 2, vocabulary: int = 50304) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "after": nn.LayerNorm(width),
                    "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
                }
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight
        self.heads = heads
        self.register_buffer("mask", torch.tril(torch.ones(1024, 1024)).view(1, 1, 1024, 1024))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        _, t = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(t, device=tokens.device))
        for block in self.blocks:
            x = x + self._attended(block, block["before"](x))
            x = x + block["mlp"](block["after"](x))
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def _attended(self, block: nn.ModuleDict, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in block["qkv"](x).split(c, dim=2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        return block["out"]((scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, t, c))


class Layers(nn.Module):
    """PyTorch's own encoder layers, pooled into classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30000, 512)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, batch_first=True), 2)
        self.head = nn.Linear(512, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


class Translator(nn.Module):
    """nn.Transformer with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30000, 512)
        self.layers = nn.Transformer(512, 8, 2, 2, batch_first=True)
        self.head = nn.Linear(512, 30000)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(shifted.shape[1])
        return self.head(self.layers(self.embed(source), self.embed(shifted), tgt_mask=mask)).transpose(1, 2)


class Linearised(nn.Module):
    """Linear attention: a feature map and running sums instead of softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 8, 64).permute(2, 0, 3, 1, 4)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        sums = torch.cumsum(torch.einsum("bhtd,bhte->bhtde", k, v), 2)
        norm = torch.einsum("bhtd,bhtd->bht", q, torch.cumsum(k, 2))
        y = torch.einsum("bhtd,bhtde->bhte", q, sums) / norm[..., None]
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Retention(nn.Module):
    """RetNet: decays between positions in place of softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(512, 512, bias=False) for _ in range(4))
        self.norm = nn.GroupNorm(8, 512)
        self.register_buffer("gamma", 1 - 2.0 ** (-5 - torch.arange(8, dtype=torch.float32)))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, 8, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        place = torch.arange(t, device=x.device)
        gap = (place[:, None] - place[None]).clamp(min=0)
        decay = torch.tril(self.gamma[:, None, None] ** gap)
        y = ((q @ k.transpose(-1, -2)) * decay) @ v
        return self.out(self.norm(y.transpose(1, 2).reshape(b * t, c)).view(b, t, c))


class Experts(nn.Module):
    """Sixteen experts, all computed, two of them weighted by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(512, 16)
        self.up, self.down = (
            nn.Parameter(0.1 * torch.randn(16, 512, 1024)),
            nn.Parameter(0.1 * torch.randn(16, 1024, 512)),
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        gates = x.new_zeros(*x.shape[:-1], 16).scatter(-1, chosen, weights)
        hidden = functional.gelu(torch.einsum("bsm,emh->besh", x, self.up))
        return torch.einsum("besh,ehm,bse->bsm", hidden, self.down, gates)


class Temporal(nn.Module):
    """Temporal convolutional network: dilated causal convolutions with weight normalisation."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.layers = nn.ModuleList(norm(nn.Conv1d(64, 64, 3, dilation=2**k)) for k in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            x = x + torch.relu(layer(functional.pad(x, (2 * 2**k, 0))))
        return self.head(x[:, :, -1])


class WaveNet(nn.Module):
    """Gated dilated convolutions with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(256, 64, 1)
        self.filters = nn.ModuleList(nn.Conv1d(64, 128, 2, dilation=2**k, padding=2**k) for k in range(5))
        self.residual = nn.ModuleList(nn.Conv1d(64, 64, 1) for _ in range(5))
        self.skip = nn.ModuleList(nn.Conv1d(64, 128, 1) for _ in range(5))
        self.exit = nn.Sequential(nn.ReLU(), nn.Conv1d(128, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.enter(x), 0
        for conv, residual, skip in zip(self.filters, self.residual, self.skip, strict=True):
            a, b = conv(x)[:, :, : x.shape[-1]].chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            x, total = x + residual(y), total + skip(y)
        return self.exit(total)


class Letters(nn.Module):
    """Small convolutional network for digits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
            nn.LogSoftmax(1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Doubled(nn.Sequential):
    """Two convolutions with batch norm."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """The U of biomedical segmentation, up by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512]
        self.down = nn.ModuleList(Doubled(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(Doubled(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for k, block in enumerate(self.down):
            x = block(x if k == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for k in reversed(range(len(self.up))):
            x = self.up[k](torch.cat([kept[k], self.rise[k](x)], 1))
        return self.head(x)


class UNetBilinear(UNet):
    """The same, up by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512]
        self.rise = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(b, a, 1))
            for a, b in pairwise(widths)
        )


class Generator(nn.Sequential):
    """DCGAN generator."""

    def __init__(self) -> None:
        super().__init__(
            nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False),
            nn.BatchNorm2d(512),
            nn.ReLU(True),
            nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(True),
            nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(True),
            nn.ConvTranspose2d(128, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    """DCGAN discriminator."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 128, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(128, 256, 4, 2, 1),
            nn.BatchNorm2d(256),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(256, 512, 4, 2, 1),
            nn.BatchNorm2d(512),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(512, 1, 4, 1, 0),
            nn.Flatten(),
        )


class Variational(nn.Module):
    """Variational autoencoder with its loss; the noise is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.Sequential(nn.Linear(784, 400), nn.ReLU())
        self.mean, self.spread = nn.Linear(400, 20), nn.Linear(400, 20)
        self.writer = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid())

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        h = self.reader(x)
        mean, spread = self.mean(h), self.spread(h)
        y = self.writer(mean + noise * torch.exp(0.5 * spread))
        apart = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        return functional.binary_cross_entropy(y, x, reduction="sum") + apart


class SuperResolution(nn.Module):
    """ESPCN: convolutions and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.PReLU(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.PReLU(),
            nn.Conv2d(32, 27, 3, padding=1),
            nn.PixelShuffle(3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class GraphDense(nn.Module):
    """Graph convolutions with a dense normalised adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1433, 64), nn.Linear(64, 7)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ self.b(torch.relu(adjacency @ self.a(x)))


class GraphSparse(nn.Module):
    """Messages along edges, added up where they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1433, 64), nn.Linear(64, 7)

    def _spread(self, x: Tensor, edges: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self._spread(self.b(torch.relu(self._spread(self.a(x), edges))), edges)


class GraphAttention(nn.Module):
    """GAT on edges: softmax over the edges that enter a node, by scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.score = nn.Linear(1433, 64), nn.Linear(128, 1)
        self.head = nn.Linear(64, 7)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(x)
        source, target = edges[0], edges[1]
        weight = functional.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2).exp()
        total = x.new_zeros(x.shape[0], 1).scatter_add(0, target[:, None], weight)
        weighted = weight / total[target] * h[source]
        out = torch.zeros_like(h).scatter_add(0, target[:, None].expand_as(weighted), weighted)
        return self.head(functional.elu(out))


class Sage(nn.Module):
    """GraphSAGE over sampled neighbours, a fixed number each."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(602, 256), nn.Linear(602, 256)
        self.head = nn.Linear(256, 41)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        h = torch.relu(self.own(x) + self.near(x[neighbours].mean(1)))
        return self.head(functional.normalize(h, dim=-1))


class PointNet(nn.Module):
    """Shared layers and a maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 1024, 1), nn.BatchNorm1d(1024), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(x).max(2)[0])


class Ranking(nn.Module):
    """DLRM: embeddings of bags, pairwise products, a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100000, 64) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 512), nn.ReLU(), nn.Linear(512, 1))
        i, j = torch.tril_indices(9, 9, -1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(t(sparse[:, k]) for k, t in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, self.i, self.j]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))


class Factors(nn.Module):
    """DeepFM: factorisation machine beside a perceptron, one table with offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(200000, 16), nn.Embedding(200000, 1)
        self.deep = nn.Sequential(
            nn.Linear(26 * 16, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.2), nn.Linear(400, 1)
        )
        self.register_buffer("offsets", torch.arange(26) * 7000)

    def forward(self, fields: Tensor) -> Tensor:
        rows = self.table(fields + self.offsets)
        crossed = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(fields + self.offsets).sum(1) + crossed + self.deep(rows.flatten(1)))


class Towers(nn.Module):
    """Two towers with a contrastive loss inside the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(500000, 64), nn.Embedding(100000, 64)
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        left = functional.normalize(self.a(self.users(user)), dim=-1)
        right = functional.normalize(self.b(self.items(item)), dim=-1)
        return functional.cross_entropy(left @ right.T / 0.07, torch.arange(left.shape[0], device=left.device))


class Waves(nn.Module):
    """SIREN: sines of coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 256), nn.Linear(256, 256), nn.Linear(256, 256)])
        self.head = nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30.0 * layer(x))
        return self.head(x)


class Radiance(nn.Module):
    """NeRF: encoded positions, a perceptron, and the sum along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
        self.register_buffer("bands", 2.0 ** torch.arange(10))

    def forward(self, points: Tensor, gaps: Tensor) -> Tensor:
        waves = (points[..., None] * self.bands).flatten(-2)
        raw = self.body(torch.cat([waves.sin(), waves.cos()], -1))
        alpha = 1 - torch.exp(-functional.relu(raw[..., 3]) * gaps)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + 1e-10], -1), -1)[..., :-1]
        return ((alpha * clear)[..., None] * torch.sigmoid(raw[..., :3])).sum(-2)


class FourierOperator(nn.Module):
    """FNO in one dimension: a product of low frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.exit = nn.Linear(2, 64), nn.Linear(64, 1)
        self.real, self.imaginary = (
            nn.Parameter(0.1 * torch.randn(64, 64, 16)),
            nn.Parameter(0.1 * torch.randn(64, 64, 16)),
        )
        self.local = nn.Conv1d(64, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).transpose(1, 2)
        spectrum = torch.fft.rfft(h)[..., :16]
        mixed = torch.einsum("bix,iox->box", spectrum, torch.complex(self.real, self.imaginary))
        h = torch.relu(torch.fft.irfft(mixed, n=h.shape[-1]) + self.local(h))
        return self.exit(h.transpose(1, 2))


class LongConvolution(nn.Module):
    """Hyena: a convolution as long as the sequence, by Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.exit = nn.Linear(256, 768), nn.Linear(256, 256)
        self.filter, self.bias = nn.Parameter(0.1 * torch.randn(256, 128)), nn.Parameter(0.1 * torch.randn(256))

    def forward(self, x: Tensor) -> Tensor:
        a, b, v = self.enter(x).transpose(1, 2).chunk(3, 1)
        u, n = a * v, x.shape[1]
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * n) * torch.fft.rfft(self.filter, n=2 * n), n=2 * n)[..., :n]
        return self.exit(((y + u * self.bias[:, None]) * b).transpose(1, 2))


class StateSpace(nn.Module):
    """A diagonal state space, stepped."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.b, self.c = (nn.Parameter(0.1 * torch.randn(128, 16)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(x.shape[0], 128, 16), []
        keep = torch.exp(-torch.exp(self.decay))
        for t in range(x.shape[1]):
            h = keep * h + self.b * x[:, t, :, None]
            out.append((h * self.c).sum(-1))
        return torch.stack(out, 1)


class Flow(nn.Module):
    """A neural differential equation: eight Runge-Kutta steps."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))

    def forward(self, x: Tensor) -> Tensor:
        step = 1.0 / 8
        for _ in range(8):
            a = self.field(x)
            b = self.field(x + 0.5 * step * a)
            c = self.field(x + 0.5 * step * b)
            d = self.field(x + step * c)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
        return x


class Couplings(nn.Module):
    """RealNVP: affine couplings and their log determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[0])
        for net in self.nets:
            a, b = x.chunk(2, -1)
            scale, shift = net(a).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([b * scale.exp() + shift, a], -1)
            total = total + scale.sum(-1)
        return (0.5 * (x.square() + math.log(2 * math.pi)).sum(-1) - total).mean()


class Capsules(nn.Module):
    """Capsules with routing by agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 256, 9), nn.Conv2d(256, 256, 9, 2)
        self.weight = nn.Parameter(0.1 * torch.randn(1152, 10, 8, 16))

    @staticmethod
    def _squash(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        u = self._squash(
            self.second(torch.relu(self.first(x)))
            .view(x.shape[0], 32, 8, 36)
            .transpose(2, 3)
            .reshape(x.shape[0], 1152, 8)
        )
        votes = torch.einsum("bni,nkij->bnkj", u, self.weight)
        logits = torch.zeros(x.shape[0], 1152, 10, device=x.device)
        for _ in range(3):
            v = self._squash((logits.softmax(-1)[..., None] * votes).sum(1))
            logits = logits + torch.einsum("bnkj,bkj->bnk", votes, v)
        return v.norm(dim=-1)


class Splines(nn.Module):
    """Kolmogorov-Arnold layer with radial basis functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(0.1 * torch.randn(64, 8, 64)), nn.Parameter(0.1 * torch.randn(64, 8, 10))
        self.register_buffer("grid", torch.linspace(-2, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        for weight in (self.a, self.b):
            x = torch.einsum("big,igo->bo", torch.exp(-((x[..., None] - self.grid) * 2).square()), weight)
        return x


class Actor(nn.Module):
    """Proximal policy optimisation: policy, value and clipped loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(17, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.policy, self.value = nn.Linear(256, 6), nn.Linear(256, 1)

    def forward(self, state: Tensor, action: Tensor, old: Tensor, advantage: Tensor, goal: Tensor) -> Tensor:
        h = self.body(state)
        logs = self.policy(h).log_softmax(-1)
        taken = logs.gather(1, action[:, None]).squeeze(1)
        ratio = torch.exp(taken - old)
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return -clipped + 0.5 * functional.mse_loss(self.value(h).squeeze(1), goal) - 0.01 * entropy


class Speech(nn.Module):
    """Deep Speech: convolutions over a spectrogram and a bidirectional GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
        self.layers = nn.GRU(32 * 81, 256, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 29)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = y.permute(0, 3, 1, 2).flatten(2)
        return self.head(self.layers(y)[0]).log_softmax(-1)


perceptron = _entry("perceptron", "MLP 784-1024-1024-10", Perceptron, classified(64), input=_x(64, 784))
lstm = _entry(RECURRENT, "LSTM language model, 32 steps", Recurrent, classified(4, 32), tokens=ids(4, 32))
gru = _entry(RECURRENT, "GRU language model, 32 steps", Gated, classified(4, 32), tokens=ids(4, 32))
rnn = _entry(RECURRENT, "Elman language model, 32 steps", Simple, classified(4, 32), tokens=ids(4, 32))
bilstm = _entry(RECURRENT, "bidirectional LSTM, 32 steps", BothWays, classified(4, 32), tokens=ids(4, 32))
lstm_cell = _entry(RECURRENT, "LSTM cell in a loop, 16 steps", Cells, classified(4), x=_x(4, 16, 256))
attended = _entry(
    RECURRENT,
    "GRU encoder-decoder with additive attention",
    Attended,
    classified(4, 16),
    source=ids(4, 16),
    target_in=ids(4, 16),
)
deep_speech = _entry(RECURRENT, "Deep Speech", Speech, None, x=_x(2, 1, 161, 64))
nano_gpt = Architecture(
    LANGUAGE, "nanoGPT", lambda: (Causal(), {"tokens": ids(4, 128)}), lambda m, i: (m, {**i, "targets": ids(4, 128)})
)
torch_encoder = _entry(LANGUAGE, "nn.TransformerEncoder classifier", Layers, classified(4), tokens=ids(4, 64))
torch_transformer = _entry(
    LANGUAGE, "nn.Transformer translator", Translator, classified(4, 24), source=ids(4, 32), shifted=ids(4, 24)
)
linear_attention = _entry(LANGUAGE, "linear attention", Linearised, None, x=_x(2, 64, 512))
retention = _entry(LANGUAGE, "RetNet retention", Retention, None, x=_x(2, 64, 512))
dense_experts = _entry(LANGUAGE, "experts by einsum, gates by scatter", Experts, None, x=_x(2, 64, 512))
temporal = _entry("convolution", "TCN with weight normalisation", Temporal, classified(8), x=_x(8, 64, 128))
wavenet = _entry("convolution", "WaveNet", WaveNet, classified(2, 512), x=_x(2, 256, 512))
digits = _entry("convolution", "MNIST example of PyTorch", Letters, None, x=_x(64, 1, 28, 28))
super_resolution = _entry("convolution", "ESPCN", SuperResolution, regressed(2, 3, 192, 192), x=_x(2, 3, 64, 64))
unet = _entry("segmentation", "U-Net, transposed convolutions", UNet, classified(2, 128, 128), x=_x(2, 3, 128, 128))
unet_bilinear = _entry("segmentation", "U-Net, bilinear", UNetBilinear, classified(2, 128, 128), x=_x(2, 3, 128, 128))
generator = _entry(PICTURE, "DCGAN generator", Generator, None, input=_x(16, 100, 1, 1))
discriminator = _entry(PICTURE, "DCGAN discriminator", Discriminator, None, input=_x(16, 3, 32, 32))
variational = _entry(PICTURE, "VAE with its loss", Variational, None, x=_x(128, 784), noise=_x(128, 20))
couplings = _entry(PICTURE, "RealNVP with its loss", Couplings, None, x=_x(128, 64))
capsules = _entry("convolution", "CapsNet", Capsules, None, x=_x(8, 1, 28, 28))
gcn_dense = _entry(
    GRAPH, "GCN, dense adjacency", GraphDense, classified(2708), x=_x(2708, 1433), adjacency=_x(2708, 2708)
)
gcn_sparse = _entry(
    GRAPH, "GCN, index_add over edges", GraphSparse, classified(2708), x=_x(2708, 1433), edges=ids(2, 10556)
)
gat = _entry(
    GRAPH, "GAT, scatter_add over edges", GraphAttention, classified(2708), x=_x(2708, 1433), edges=ids(2, 10556)
)
graph_sage = _entry(
    GRAPH, "GraphSAGE, sampled neighbours", Sage, classified(4096), x=_x(4096, 602), neighbours=ids(4096, 10)
)
pointnet = _entry("set", "PointNet", PointNet, classified(16), x=_x(16, 3, 1024))
dlrm = _entry(RANKING, "DLRM", Ranking, regressed(512, 1), dense=_x(512, 13), sparse=ids(512, 8))
deepfm = _entry(RANKING, "DeepFM", Factors, regressed(512, 1), fields=ids(512, 26))
two_towers = _entry(RANKING, "two towers with their loss", Towers, None, user=ids(512), item=ids(512))
siren = _entry(SCIENCE, "SIREN", Waves, regressed(4096, 3), x=_x(4096, 2))
nerf = _entry(SCIENCE, "NeRF", Radiance, regressed(256, 3), points=_x(256, 64, 3), gaps=_x(256, 64))
fourier_operator = _entry(SCIENCE, "Fourier neural operator", FourierOperator, regressed(4, 128, 1), x=_x(4, 128, 2))
hyena = _entry(LANGUAGE, "Hyena", LongConvolution, None, x=_x(2, 128, 256))
state_space = _entry(RECURRENT, "diagonal state space, 32 steps", StateSpace, None, x=_x(2, 32, 128))
neural_ode = _entry(SCIENCE, "neural ODE, 8 steps of RK4", Flow, regressed(64, 64), x=_x(64, 64))
kan = _entry(SCIENCE, "Kolmogorov-Arnold network", Splines, classified(64), x=_x(64, 64))
ppo = _entry(
    "reinforcement",
    "PPO loss",
    Actor,
    None,
    state=_x(64, 17),
    action=ids(64),
    old=_x(64),
    advantage=_x(64),
    goal=_x(64),
)
