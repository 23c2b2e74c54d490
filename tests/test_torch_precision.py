"""Training steps in mixed precision against PyTorch: autocast, weights cast once, GradScaler."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch_training import fed, step_of

from shardproof.backends.execution.reference import run_graph
from shardproof.models.sources.training import build_step

nn, Tensor = torch.nn, torch.Tensor
pytestmark = pytest.mark.torch


class Perceptron(nn.Module):
    """Two linear layers and a mean square."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8, bias=bias), nn.Linear(8, 4, bias=bias)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.two(torch.relu(self.one(x))), target)


def perceptron() -> tuple[Any, ...]:
    return Perceptron(), {"x": torch.zeros(4, 8), "target": torch.zeros(4, 4)}


class Layer(nn.Module):
    """A pre-norm transformer layer between an embedding and a vocabulary, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.position = nn.Embedding(16, 16), nn.Parameter(torch.zeros(6, 16))
        self.norm1, self.norm2, self.last = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 16, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids) + self.position
        q, k, v = (t.reshape(2, 6, 2, 8).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(16, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(2, 6, 16))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        logits = self.head(self.last(x))
        return nn.functional.cross_entropy(logits.float().reshape(-1, 16), labels.reshape(-1))


def layer() -> tuple[Any, ...]:
    ids = torch.zeros((2, 6), dtype=torch.int64)
    return Layer(), {"ids": ids, "labels": ids}


def few_bits(shape: tuple[int, ...], draw: torch.Generator, most: int, unit: float) -> Tensor:
    return torch.randint(-most, most + 1, shape, generator=draw) * unit


def biased() -> tuple[Any, ...]:
    return Perceptron(True), perceptron()[1]


@pytest.mark.parametrize("bias", [False, True])
def test_a_step_under_autocast_bit_for_bit(bias: bool) -> None:
    """Numbers of few bits, so that every sum is exact in float32 whatever its order; weights need more than bfloat16.
    A bias is added before the product is rounded.
    """
    draw = torch.Generator().manual_seed(1)
    module, factory = Perceptron(bias), biased if bias else perceptron
    for p in module.parameters():
        p.data = few_bits(tuple(p.shape), draw, 16, 2.0**-5) * (1 + 2.0**-9)
    inputs = {"x": few_bits((4, 8), draw, 8, 0.25), "target": few_bits((4, 4), draw, 8, 0.25)}
    step = step_of(factory, "sgd:rate=0.125").graph  # float32, to see that the precision matters
    half = rebuilt("sgd:rate=0.125", "bf16-mixed:reduce=bfloat16", factory)
    feed = {k: v.astype(np.float32) for k, v in fed(half, module, inputs).items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.125)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(**inputs)
    loss.backward()
    optimizer.step()
    got = run_graph(half, feed, stored=True)
    assert got[half.outputs[0]] == np.float32(loss.item())
    for name, p in module.named_parameters():
        np.testing.assert_array_equal(got[dict(half.state)[name]], p.detach().numpy(), err_msg=name)
    plain = run_graph(step, feed)
    assert any((plain[dict(step.state)[n]] != p.detach().numpy()).any() for n, p in module.named_parameters())


class Biased(nn.Module):
    """Every way in which PyTorch adds a bias in one kernel, and sums of the same shape that are two kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.convolved = nn.Linear(8, 6), nn.Conv2d(3, 4, 3)
        self.heads, self.free = nn.Linear(8, 12), nn.Linear(8, 6, bias=False)
        self.position = nn.Parameter(torch.zeros(5, 6))

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        heads = [t.view(2, 5, 2, 3).transpose(1, 2) for t in self.heads(x).chunk(2, -1)]
        return self.linear(x), self.convolved(image), *heads, self.free(x) + self.position


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-master"])
def test_a_bias_is_added_before_the_product_is_rounded(precision: str) -> None:
    """Bit for bit, on sums of few bits whose rounding differs where the product is rounded first."""
    from shardproof.models.sources.building.stated import with_constants
    from shardproof.models.sources.precision import mixed_precision, parse_precision
    from shardproof.models.sources.torch.importer import convert
    from shardproof.models.sources.torch.program import build

    draw = torch.Generator().manual_seed(2)
    module = Biased()
    for p in module.parameters():
        p.data = few_bits(tuple(p.shape), draw, 127, 2.0**-6 if p.dim() > 1 else 2.0**-4)
    given = {"x": few_bits((2, 5, 8), draw, 127, 2.0**-6), "image": few_bits((2, 3, 6, 6), draw, 127, 2.0**-6)}
    found = convert(build(lambda: (Biased(), {k: torch.zeros_like(v) for k, v in given.items()}), "model"))
    half = mixed_precision(with_constants(found.graph, found.stated), parse_precision(precision))
    feed = {k: v.astype(np.float32) for k, v in fed(half, module, given).items()}
    got = run_graph(half, feed, stored=True)
    theirs = module.to(torch.bfloat16)(*(v.to(torch.bfloat16) for v in given.values()))
    for name, wanted in zip(half.outputs, theirs, strict=True):
        np.testing.assert_array_equal(got[name].reshape(wanted.shape), wanted.detach().float().numpy(), err_msg=name)
    x, w, b = given["x"], module.linear.weight.float(), module.linear.bias.float()
    twice = (x @ w.T).to(torch.bfloat16).float() + b
    assert (twice.to(torch.bfloat16) != theirs[0]).any()  # the order matters here


def rebuilt(optimizer: str, precision: str, factory: Any = perceptron) -> Any:
    from shardproof.models.sources.building.stated import with_constants
    from shardproof.models.sources.torch.importer import convert
    from shardproof.models.sources.torch.program import build

    found = convert(build(factory, "model"))
    return build_step(with_constants(found.graph, found.stated), optimizer, precision=precision).graph


def drawn() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(3)
    module = Layer()
    draw = torch.Generator().manual_seed(4)
    for p in module.parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=draw)
    return module, {k: torch.randint(0, 16, (2, 6), generator=draw) for k in ("ids", "labels")}


def close(got: np.ndarray, wanted: Tensor, what: str, of: Tensor, tolerance: float) -> None:
    """Of what a step changed, relative to the largest change."""
    change = (wanted - of).detach().numpy()
    error = np.abs(got.reshape(change.shape) - of.detach().numpy() - change)
    assert error.max() <= tolerance * np.abs(change).max(), (what, error.max() / np.abs(change).max())


@pytest.mark.parametrize("reduce", ["float32", "bfloat16"])
def test_a_transformer_layer_under_autocast(reduce: str) -> None:
    """The list of operators of the CPU differs (it normalises in bfloat16), which is within the rounding."""
    module, inputs = drawn()
    before = deepcopy(module)
    half = rebuilt("sgd:rate=1", f"bf16-mixed:reduce={reduce}", layer)
    feed = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in fed(half, module, inputs).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(**inputs)
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    got = run_graph(half, feed, stored=True)
    assert abs(got[half.outputs[0]] - loss.item()) <= 2.0**-7 * loss.item()
    for (name, p), old in zip(module.named_parameters(), before.parameters(), strict=True):
        close(got[dict(half.state)[name]], p, name, old, 0.06)


def test_a_transformer_layer_in_bfloat16_with_wide_weights() -> None:
    """`module.to(bfloat16)` on weights rounded from float32, updated in float32: three steps."""
    module, inputs = drawn()
    narrow = deepcopy(module).to(torch.bfloat16)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    graph = rebuilt("sgd:rate=0.1", "bf16-master", layer)
    feed = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in fed(graph, module, inputs).items()}
    for _ in range(3):
        before = deepcopy(module)
        for p, q in zip(narrow.parameters(), module.parameters(), strict=True):
            p.data, p.grad = q.data.to(torch.bfloat16), None
        loss = narrow(**inputs)
        loss.backward()
        for p, q in zip(narrow.parameters(), module.parameters(), strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        got = run_graph(graph, feed, stored=True)
        assert abs(got[graph.outputs[0]] - loss.item()) <= 2.0**-6 * loss.item()
        for (name, p), old in zip(module.named_parameters(), before.parameters(), strict=True):
            close(got[dict(graph.state)[name]], p, name, old, 0.1)
        for name, p in module.named_parameters():
            feed[name] = p.detach().numpy().reshape(feed[name].shape).copy()


@pytest.mark.parametrize("scale", [2.0**10, 2.0**17])
def test_the_scale_is_that_of_grad_scaler(scale: float) -> None:
    """Four steps, of which the large scale makes the first ones infinite; growth every two steps."""
    draw = torch.Generator().manual_seed(5)
    module = Perceptron()
    for p in module.parameters():
        p.data = few_bits(tuple(p.shape), draw, 16, 2.0**-4)
    inputs = {"x": few_bits((4, 8), draw, 8, 0.25), "target": few_bits((4, 4), draw, 64, 0.25)}
    graph = rebuilt("sgd:rate=0.0078125", "fp16-mixed:reduce=float16,interval=2")
    feed = {k: v.astype(np.float32) for k, v in fed(graph, module, inputs).items()}
    feed["loss_scale"] = np.array(scale, dtype=np.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0078125)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    scales = []
    for number in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = module(**inputs)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        got = run_graph(graph, feed, stored=True)
        feed.update({old: got[new] for old, new in graph.state})
        scales.append(scaler.get_scale())
        assert float(feed["loss_scale"]) == scales[-1], number
        for name, p in module.named_parameters():
            np.testing.assert_allclose(feed[name], p.detach().numpy(), rtol=2e-3, atol=2e-3, err_msg=name)
    assert scales[0] == (scale / 2 if scale > 2.0**15 else scale)


def test_gradients_accumulated_in_four_parts() -> None:
    """`backward` on every quarter of the batch, of the mean over all of it, then one clipped step of AdamW."""
    from shardproof.models.sources.building.stated import with_constants
    from shardproof.models.sources.torch.importer import convert
    from shardproof.models.sources.torch.program import build
    from shardproof.models.sources.training.accumulation import accumulate

    draw = torch.Generator().manual_seed(7)
    module = Perceptron().double()
    inputs = {k: torch.randn(s, generator=draw, dtype=torch.float64) for k, s in (("x", (8, 8)), ("target", (8, 4)))}

    def whole() -> tuple[Any, ...]:
        return Perceptron(), {"x": torch.zeros(8, 8), "target": torch.zeros(8, 4)}

    found = convert(build(whole, "model"))
    graph = accumulate(build_step(with_constants(found.graph, found.stated), "adamw:rate=0.1,clip=0.2"), 4).graph
    feed = fed(graph, module, inputs)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for k in range(4):
        part = {n: v[2 * k : 2 * k + 2] for n, v in inputs.items()}
        (module(**part) / 4).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.2)
    optimizer.step()
    got = run_graph(graph, feed)
    for name, p in module.named_parameters():
        wanted = p.detach().numpy()
        np.testing.assert_allclose(got[dict(graph.state)[name]].reshape(wanted.shape), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3])
def test_ignored_labels_count_over_the_whole_batch(count: int) -> None:
    """The mean of PyTorch's cross entropy over the labels that are not ignored, of which micro-batches have 4, 1, 0."""
    from shardproof.models.sources.training.accumulation import accumulate

    class Classified(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(5, 4), nn.Linear(4, 5)

        def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.linear(self.table(ids)).reshape(-1, 5), labels.reshape(-1))

    draw = torch.Generator().manual_seed(9)
    module = Classified().double()
    inputs = {k: torch.randint(0, 5, (6, 2), generator=draw) for k in ("ids", "labels")}
    inputs["labels"][2:] = -100
    inputs["labels"][3, 1] = 2
    graph = accumulate(
        step_of(lambda: (Classified(), {k: torch.zeros_like(v) for k, v in inputs.items()}), "sgd:rate=1"), count
    ).graph
    feed = fed(graph, module, inputs)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    loss = module(**inputs)
    loss.backward()
    optimizer.step()
    got = run_graph(graph, feed)
    np.testing.assert_allclose(got[graph.outputs[0]], loss.item(), rtol=1e-12)
    for name, p in module.named_parameters():
        wanted = p.detach().numpy()
        np.testing.assert_allclose(got[dict(graph.state)[name]].reshape(wanted.shape), wanted, rtol=1e-10, atol=1e-12)


class OwnNorm(nn.Module):
    """Hugging Face's `LlamaRMSNorm`: rounded before its gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class WidenedNorm(nn.LayerNorm):
    """A layer norm in float32 of what is kept in 16 bits."""

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float())
        return wide.type_as(x)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("made", "wanted"),
    [(nn.RMSNorm, ["rms_norm"]), (OwnNorm, ["rms_norm", "multiply"]), (WidenedNorm, ["layer_norm"])],
)
def test_a_norm_of_a_module_in_bfloat16_is_an_operator(made: Any, wanted: list[str], batch: int) -> None:
    """Nothing in float32 is stored, and what the program rounds on the way is rounded."""
    from shardproof.models.sources.torch.importer import convert
    from shardproof.models.sources.torch.program import build

    torch.manual_seed(7)
    module = made(64).bfloat16()
    for p in module.parameters():
        p.data += torch.randn(p.shape).to(p.dtype)
    x = torch.randn(batch, 32, 64).bfloat16()
    graph = convert(build(lambda: (made(64).bfloat16(), {"x": x}), "model")).graph
    assert [op.function for op in graph.operators] == wanted
    assert {t.dtype for t in graph.tensors} == {"bfloat16"}
    held = {**dict(module.named_parameters()), "x": x}
    feed = {t.name: held[t.name].detach().float().numpy() for t in graph.tensors if t.name in held}
    feed = {t.name: feed[t.name].reshape(t.shape) for t in graph.tensors if t.name in held}
    got, theirs = run_graph(graph, feed, stored=True)[graph.outputs[0]], module(x).detach().float().numpy()
    assert np.mean(got.reshape(theirs.shape) != theirs) < 1e-3  # sums of another order, near the middle of two numbers
    np.testing.assert_allclose(got.reshape(theirs.shape), theirs, rtol=2.0**-7)


class BelowNorm(nn.Module):
    """A linear layer, a norm and a mean square."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.below, self.norm = nn.Linear(64, 64, bias=False), made(64)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ((self.norm(self.below(x)).float() - target) ** 2).mean()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("made", [nn.RMSNorm, OwnNorm, WidenedNorm])
def test_gradients_of_a_norm_of_a_module_in_bfloat16(made: Any, batch: int) -> None:
    """They are as near to those of float32 as PyTorch's in bfloat16 are."""
    torch.manual_seed(8)
    module = BelowNorm(made).bfloat16()
    for p in module.parameters():
        p.data = (p + 0.3 * torch.randn(p.shape)).to(p.dtype)
    x, target = torch.randn(batch, 32, 64).bfloat16(), torch.randn(batch, 32, 64)
    exact, single = deepcopy(module).float(), {"x": x.float(), "target": target}
    module(x, target).backward()
    exact(**single).backward()
    step = step_of(lambda: (BelowNorm(made).bfloat16(), {"x": x, "target": target}), "sgd")
    assert {"rms_norm_gradient", "layer_norm_gradient"} & {op.function for op in step.graph.operators}
    feed = {k: v.astype(np.float32) for k, v in fed(step.graph, exact, single).items()}
    got = run_graph(step.graph, feed, keep=[g for _, g in step.trained], stored=True)
    gradient = dict(step.trained)
    for (name, theirs), (_, wanted) in zip(module.named_parameters(), exact.named_parameters(), strict=True):
        ours = torch.from_numpy(got[gradient[name]].astype(np.float32).reshape(wanted.shape))
        far, near = ((g.float() - wanted.grad).norm() / wanted.grad.norm() for g in (ours, theirs.grad))
        assert far <= 1.25 * near + 2.0**-10, (name, float(far), float(near))
