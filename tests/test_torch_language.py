"""Language models of Hugging Face with the loss that they return: loss and gradients equal PyTorch's, in float64.

Configurations as people write them, with `use_cache` and tied embeddings as they are, two layers of small widths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch_training import compare_gradients, step_of

from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.sources.torch.program import build

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BATCH, LENGTH, WORDS = 2, 8, 24
PLAIN = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
RELATIVE = {**PLAIN, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
FEW = {"n_layer": 2, "n_head": 4, "vocab_size": WORDS}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**GROUPED, "head_dim": 4}),
    "phi": ("PhiConfig", "PhiForCausalLM", PLAIN),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**{k: v for k, v in PLAIN.items() if k != "intermediate_size"}, "ffn_dim": 24, "word_embed_proj_dim": 16},
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", {**FEW, "hidden_size": 16}),
    "gpt-2": ("GPT2Config", "GPT2LMHeadModel", {**FEW, "n_embd": 16, "n_positions": 16}),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", PLAIN),
    "bert": ("BertConfig", "BertForMaskedLM", PLAIN),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", PLAIN),
    "deberta": ("DebertaConfig", "DebertaForMaskedLM", RELATIVE),
    "deberta-v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", {**RELATIVE, "position_buckets": 4}),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": WORDS,
            "decoder_start_token_id": 0,
        },
    ),
}


def factory(name: str, labels: bool = True, **more: Any) -> Any:
    config, model, options = MODELS[name]

    def make() -> tuple[Any, ...]:
        settings = getattr(transformers, config)(**{**options, **more})
        ids = torch.zeros((BATCH, LENGTH), dtype=torch.int64)
        return getattr(transformers, model)(settings), {"input_ids": ids, **({"labels": ids} if labels else {})}

    return make


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models write `.float()` and `torch.float32` into norms, positions and losses: here they mean float64."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_loss_and_gradients_are_those_of_pytorch(name: str) -> None:
    draw = torch.Generator().manual_seed(2)
    ids, labels = (torch.randint(2, WORDS, (BATCH, LENGTH), generator=draw) for _ in range(2))
    labels[0, 3] = labels[1, 5:] = -100
    step = compare_gradients(factory(name), {"input_ids": ids, "labels": labels})
    assert step.loss.startswith("the loss is the output 'loss'")
    text = step.graph.to_json()
    again = Graph.from_json(text)
    assert again == step.graph
    assert again.to_json() == text


def test_without_labels_a_decoder_gets_the_cross_entropy_of_the_next_token() -> None:
    step = step_of(factory("gpt-2", labels=False))
    assert step.loss == "the loss is the mean cross entropy of 'lm_head' against the integer input 'labels'"


def test_values_per_token_without_a_vocabulary_are_refused() -> None:
    def make() -> tuple[Any, ...]:
        settings = transformers.BertConfig(**PLAIN, num_labels=3)
        return transformers.BertForTokenClassification(settings), {
            "input_ids": torch.zeros((BATCH, LENGTH), dtype=torch.int64)
        }

    with pytest.raises(GraphError, match="3 numbers per token.*labels=.*--loss cross-entropy"):
        step_of(make)
    assert "cross entropy" in step_of(make, "sgd", "cross-entropy").loss
    assert "squared error" in step_of(make, "sgd", "squared-error").loss


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_caches_are_switched_off_and_it_is_said(name: str) -> None:
    program = build(factory(name), name)
    assert any("use_cache is switched off" in note for note in program.notes)
