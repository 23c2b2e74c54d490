"""Planning a live module leaves it as it was: weights, buffers, ties, settings; and it can be planned again."""

from __future__ import annotations

import pytest

import shardproof

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Tied(torch.nn.Module):
    """An embedding, tied to the head; a buffer, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((16,), 2.0))
        self.shift = torch.ones(16)

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids) * self.scale + self.shift))


def test_a_module_stays_as_it_was() -> None:
    torch.manual_seed(0)
    module, ids = Tied(), torch.randint(0, 32, (8, 4))
    before, parts = module(ids), [*module.parameters(), *module.buffers(), module.shift]
    first = shardproof.plan(module, "localhost:2", inputs=(ids,), train="sgd")
    assert torch.equal(module(ids), before) and module.head.weight is module.embed.weight
    assert all(a is b for a, b in zip(parts, [*module.parameters(), *module.buffers(), module.shift], strict=True))
    assert shardproof.plan(module, "localhost:2", inputs=(ids,), train="sgd").identity == first.identity
    assert "embed.weight" in first.layouts


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    import threading

    module = Tied()
    module.lock = threading.Lock()
    with pytest.raises(shardproof.api.InputError, match="Tied cannot be copied"):
        shardproof.plan(module, "localhost:2", inputs=(torch.zeros(8, 4, dtype=torch.long),))
