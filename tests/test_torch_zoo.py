"""Every model of the zoo from its PyTorch source: the same graph up to names, and the same numbers.

`canonical` brings both graphs into one form first (scales of contractions, fused products and sums, units, constants);
`mutants` show that it hides no difference in weights, sizes, connections, functions, attributes or element types.
"""

from __future__ import annotations

import importlib
from functools import partial

import pytest

torch = pytest.importorskip("torch")
from canonical_graph import canonical
from graph_equality import same_up_to_names
from torch_case import compare, imported

from shardproof.models.sources.zoo import TINY, ZOO, build

pytestmark = pytest.mark.torch

SOURCES = {
    "alexnet": "vision:alexnet",
    "bert-large": "language:bert_large",
    "bert-tiny": "language:bert_tiny",
    "candle-uno": "dense:candle_uno",
    "dlrm": "dense:dlrm",
    "inception-v3": "vision:inception_v3",
    "llama": "decoder:llama",
    "mlp-8192": "dense:mlp_8192",
    "mlp-unity": "dense:mlp_unity",
    "moe": "decoder:moe",
    "resnet101": "vision:resnet101",
    "resnext50": "vision:resnext50",
    "rnnlm": "language:rnnlm",
    "transformer": "language:transformer",
    "vit": "vision:vit",
    "xdl": "dense:xdl",
}
"""Zoo model -> module:factory in tests/torch_models."""
NOT_MODELS = {"attention", "conv-stack", "linear-training", "mlp-uneven", "mlp-unity-training", "transformer-layer"}
"""Pieces and hand-written training graphs without a PyTorch source; no other model of the zoo may lack one."""


def factory(model: str, **options: int | str):
    module, name = SOURCES[model].split(":")
    return partial(getattr(importlib.import_module(module), name), **{**TINY[model], **options})


def test_every_model_has_a_source() -> None:
    assert set(SOURCES) | NOT_MODELS == set(ZOO)


@pytest.mark.parametrize("model", sorted(SOURCES))
def test_source_and_zoo_are_the_same_graph_up_to_names(model: str) -> None:
    assert same_up_to_names(canonical(imported(factory(model)).graph), canonical(build(model, **TINY[model]))) is None


@pytest.mark.parametrize("model", ["resnext50", "inception-v3"])
def test_stored_statistics(model: str) -> None:
    found = imported(factory(model, frozen="yes")).graph
    assert same_up_to_names(canonical(found), canonical(build(model, **{**TINY[model], "frozen": "yes"}))) is None
    assert same_up_to_names(canonical(found), canonical(build(model, **TINY[model]))) is not None


@pytest.mark.parametrize("model", sorted(set(SOURCES) - {"bert-large"}))
def test_numbers_are_those_of_the_module(model: str) -> None:
    compare(factory(model), largest=20 if model in ("dlrm", "xdl", "llama", "moe", "rnnlm", "transformer") else 2)


@pytest.mark.parametrize(
    ("model", "option", "value"),
    [
        ("bert-tiny", "layers", 3),
        ("bert-tiny", "batch", 4),
        ("llama", "kv_heads", 4),
        ("llama", "theta", 1000),
        ("moe", "chosen", 1),
        ("moe", "capacity_percent", 50),
        ("vit", "heads", 4),
        ("resnext50", "groups", 4),
        ("dlrm", "bag", 1),
        ("rnnlm", "steps", 2),
        ("inception-v3", "classes", 4),
        ("transformer", "dtype", "float32"),
    ],
)
def test_another_size_is_another_graph(model: str, option: str, value: int | str) -> None:
    found = same_up_to_names(
        canonical(imported(factory(model, **{option: value})).graph), canonical(build(model, **TINY[model]))
    )
    assert found is not None and found.what
