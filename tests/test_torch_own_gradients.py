"""What gives gradients that are not the derivative of the forward pass is refused by name where the program is trained,
and what an export reads as something else than PyTorch does is that, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch_training import compare_gradients, step_of

from shardproof.models.program.graph import Graph, UnsupportedOperators
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.torch.shadow import without_weights
from shardproof.models.sources.training import build_step

WIDTH = 4
Tensor = torch.Tensor
Middle = Callable[[Any, Any], Any]


class Tripled(torch.autograd.Function):
    """x 2, and a gradient of 3."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


class Rounded(torch.autograd.Function):
    """Rounded, with the gradient of what was rounded."""

    @staticmethod
    def forward(x: Any) -> Any:
        return torch.round(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.inputs = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Net(nn.Module):
    """A layer, something in between, a layer."""

    def __init__(self, middle: Middle, prepare: Callable[[Any], object] | None = None) -> None:
        super().__init__()
        self.a, self.b, self.middle = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), middle
        if prepare is not None:
            prepare(self)

    def forward(self, x: Any) -> Any:
        return (self.b(self.middle(self, self.a(x))) ** 2).mean()


def made(middle: Middle, prepare: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    return lambda: (Net(middle, prepare), (torch.randn(3, WIDTH),))


def same(net: Any, h: Any) -> Any:
    return h


def hooked(net: Any, h: Any) -> Any:
    h.register_hook(lambda g: 2 * g)
    return h


def packed(net: Any, h: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t / 2, lambda t: t):
        return h * h


def doubled(*values: Any) -> Any:
    return tuple(2 * g for g in values[-1])


OWN: dict[str, tuple[Callable[[], Any], str]] = {
    "a backward": (made(lambda net, h: Tripled.apply(h)), "torch.autograd.Function Tripled (test_torch_own_gradients"),
    "straight through": (made(lambda net, h: Rounded.apply(h)), "torch.autograd.Function Rounded"),
    "hook of a tensor": (made(hooked), "tensor.register_hook of <lambda>"),
    "hook of a parameter": (made(same, lambda n: n.a.weight.register_hook(lambda g: 2 * g)), "parameter 'a.weight'"),
    "accumulated": (
        made(same, lambda n: n.a.weight.register_post_accumulate_grad_hook(lambda p: None)),
        "parameter 'a.weight'",
    ),
    "backward hook": (made(same, lambda n: n.b.register_full_backward_hook(doubled)), "doubled"),
    "hook before backward": (made(same, lambda n: n.b.register_full_backward_pre_hook(doubled)), "module 'b'"),
    "saved tensors": (made(packed), "saved_tensors_hooks with <lambda>"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_gradient_of_its_own_is_refused_where_it_is_trained_and_told_where_it_is_not(name: str) -> None:
    factory, words = OWN[name]
    found = convert(build(factory, "model"))
    assert any(words in note for note in found.notes)
    graph = with_constants(found.graph, found.stated)
    for kept in (graph, Graph.from_json(graph.to_json())):
        with pytest.raises(UnsupportedOperators, match=re.escape(words)):
            build_step(kept, "sgd")


def test_a_step_of_the_users_own_is_refused_as_well() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    def whole() -> Any:
        net, inputs = OWN["a backward"][0]()
        return step, net, torch.optim.SGD(net.parameters(), lr=0.1), inputs

    from shardproof.models.sources.torch.train_step import whole_step

    program = build(whole, "model")
    assert program.step is not None
    with pytest.raises(UnsupportedOperators, match="torch.autograd.Function Tripled"):
        whole_step(convert(program).graph, program.step)


def test_a_copy_without_weights_keeps_the_hooks_of_parameters() -> None:
    net, inputs = OWN["hook of a parameter"][0]()
    assert build(lambda: (without_weights(net), inputs), "model").own


@pytest.mark.parametrize(
    "middle",
    [
        lambda net, h: Tripled.apply(h.detach()),
        lambda net, h: h + h.detach().requires_grad_(True),
        lambda net, h: torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=False),
        lambda net, h: torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=True),
    ],
    ids=["detached", "asked for", "checkpoint", "reentrant"],
)
def test_what_changes_no_gradient_is_not_refused(middle: Middle) -> None:
    assert not build(made(middle), "model").own


def inference(net: Any, h: Any) -> Any:
    with torch.inference_mode():
        y = h.exp()
    return h + y


@pytest.mark.parametrize(
    "middle",
    [
        inference,
        torch.inference_mode(False)(lambda net, h: h.exp()),
        lambda net, h: h * h.data,
        lambda net, h: h + (torch.round(h) - h).detach(),
        lambda net, h: 0.1 * h + 0.9 * h.detach(),
        lambda net, h: torch.where(h > 0, h, h.detach()),
    ],
    ids=["inference mode", "no inference mode", "data", "straight through", "scaled", "one branch"],
)
def test_regions_without_gradients_have_none(middle: Middle) -> None:
    """`h.data` was a weight nobody has, and inference mode nothing at all."""
    compare_gradients(made(middle), {"x": torch.randn(3, WIDTH, dtype=torch.float64)})


def assigned(net: Any, h: Any) -> Any:
    net.b.weight.data = net.b.weight * 2
    return h


def toggled(net: Any, h: Any) -> Any:
    net.b.weight.requires_grad_(False)
    y = net.b(h)
    net.b.weight.requires_grad_(True)
    return y


def halved(net: Any, h: Any) -> Any:
    with torch.no_grad():
        net.b.weight.mul_(0.5)
    return h


@pytest.mark.parametrize(
    ("middle", "said"),
    [
        (assigned, r"test_torch_own_gradients.py:\d+: assigns .data in the forward pass"),
        (toggled, r"test_torch_own_gradients.py:\d+: sets requires_grad of a parameter"),
        (halved, "parameter 'b.weight': is written in place by the forward pass"),
        (lambda net, h: (net.b.weight.data.mul_(0.5), h)[1], "'b.weight': is written in place"),  # ended the process
    ],
    ids=["data assigned", "toggled", "written in place", "data written"],
)
def test_a_forward_pass_that_changes_parameters_is_refused(middle: Middle, said: str) -> None:
    with pytest.raises(TorchError, match=said):
        step_of(made(middle))


class Words(nn.Module):
    """A table of words and a layer."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.layer = table, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return (self.layer(self.table(x)) ** 2).mean()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (lambda: nn.Embedding(5, WIDTH, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (lambda: nn.EmbeddingBag(5, WIDTH, mode="sum", scale_grad_by_freq=True), "scale_grad_by_freq"),
        (lambda: nn.EmbeddingBag(5, WIDTH, padding_idx=1), "padding_idx"),
    ],
    ids=["frequency", "frequency in bags", "padding in bags"],
)
def test_tables_whose_options_were_dropped_are_refused(table: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(UnsupportedOperators, match=said):
        step_of(lambda: (Words(table()), (torch.tensor([[1, 2, 1], [0, 4, 1]]),)))


class Holding(nn.Module):
    """A layer, and a tensor that is read or not."""

    def __init__(self, tensor: Any, kind: str, read: Middle) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(WIDTH, WIDTH), read
        if kind == "parameter":
            self.kept = nn.Parameter(tensor)
        elif kind == "attribute":
            self.kept = tensor
        else:
            self.register_buffer("kept", tensor, persistent=kind == "buffer")

    def forward(self, x: Any) -> Any:
        return self.read(self, self.layer(x))


class Other(torch.Tensor):
    """A tensor whose functions are its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


UNREADABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "coo": (lambda: torch.eye(WIDTH).to_sparse(), "a sparse tensor"),
    "csr": (lambda: torch.eye(WIDTH).to_sparse_csr(), "a sparse tensor"),
    "csc": (lambda: torch.eye(WIDTH).to_sparse_csc(), "a sparse tensor"),
    "bsr": (lambda: torch.eye(WIDTH).to_sparse_bsr((2, 2)), "a sparse tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2, WIDTH), torch.ones(3, WIDTH)]), "a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2, WIDTH), torch.ones(3, WIDTH)], layout=torch.jagged),
        "a nested tensor",
    ),
    "subclass": (lambda: torch.ones(WIDTH, WIDTH).as_subclass(Other), "whose functions are its own"),
}
KINDS = ("buffer", "not stored", "attribute", "parameter")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_tensor_that_no_operator_reads_may_be_held(name: str, kind: str) -> None:
    tensor, _ = UNREADABLE[name]
    found = convert(build(lambda: (Holding(tensor(), kind, same), (torch.randn(3, WIDTH),)), "model"))
    assert [t.name for t in found.graph.tensors if t.role.value == "parameter"] == ["layer.weight", "layer.bias"]


@pytest.mark.parametrize(
    "read",
    [
        lambda net, h: h @ net.kept,
        lambda net, h: h + net.kept[0],
        lambda net, h: torch.mm(h, net.kept),
        lambda net, h: h @ net.kept.to_dense(),
    ],
    ids=["operator", "row", "function", "method"],
)
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_tensor_that_no_operator_can_read_is_refused_by_name(name: str, read: Middle) -> None:
    tensor, said = UNREADABLE[name]
    for kind in KINDS:
        with pytest.raises(TorchError, match=f"'kept'.*{said}"):
            convert(build(lambda k=kind: (Holding(tensor(), k, read), (torch.randn(3, WIDTH),)), "model"))


@pytest.mark.parametrize("name", UNREADABLE)
def test_it_is_no_input_either(name: str) -> None:
    tensor, said = UNREADABLE[name]
    with pytest.raises(TorchError, match=f"example input .*{said}"):
        build(lambda: (nn.Identity(), (tensor(),)), "model")
