"""Builders for Hugging Face transformers: a configuration class, a model class, the inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from entries import Architecture, Built, Loss, ids, labelled, next_token
from torch import Tensor


def made(config: str, model: str, inputs: Callable[[], dict[str, Tensor]], **options: object) -> Callable[[], Built]:
    """A function that makes the model from its configuration only."""

    def build() -> Built:
        return getattr(transformers, model)(getattr(transformers, config)(**options)), inputs()

    return build


def causal(
    family: str, stem: str, model: str | None = None, config: str | None = None, length: int = 64, **options: object
) -> Architecture:
    """A decoder that predicts the next token; two sequences."""
    name = model or f"{stem}ForCausalLM"
    build = made(config or f"{stem}Config", name, lambda: {"input_ids": ids(2, length)}, **options)
    return Architecture(family, name, build, next_token)


def encoder(
    stem: str, head: str = "ForMaskedLM", length: int = 64, masked: bool = True, **options: object
) -> Architecture:
    """An encoder with the head it is trained with first; two sequences, `masked`: with their attention masks."""

    def inputs() -> dict[str, Tensor]:
        mask = {"attention_mask": torch.ones(2, length, dtype=torch.int64)} if masked else {}
        return {"input_ids": ids(2, length), **mask}

    loss: Loss | None = next_token if head in ("ForMaskedLM", "LMHeadModel", "WithLMHeadModel") else None
    if head == "ForSequenceClassification":
        loss = labelled(2)
    return Architecture("encoder", stem + head, made(f"{stem}Config", stem + head, inputs, **options), loss)


def translator(
    stem: str,
    head: str = "ForConditionalGeneration",
    config: str | None = None,
    masked: bool = False,
    **options: object,
) -> Architecture:
    """An encoder and a decoder over tokens; `masked`: with the attention mask of the encoder."""

    def inputs() -> dict[str, Tensor]:
        mask = {"attention_mask": torch.ones(2, 64, dtype=torch.int64)} if masked else {}
        return {"input_ids": ids(2, 64), "decoder_input_ids": ids(2, 32), **mask}

    return Architecture(
        "encoder-decoder", stem + head, made(config or f"{stem}Config", stem + head, inputs, **options), labelled(2, 32)
    )


def seen(
    family: str,
    model: str,
    config: str,
    *shape: int,
    key: str = "pixel_values",
    loss: Loss | None = None,
    **options: object,
) -> Architecture:
    """A model of one array of numbers: images, sounds, series."""
    return Architecture(family, model, made(config, model, lambda: {key: torch.zeros(shape)}, **options), loss)


def several(
    family: str,
    model: str,
    config: str,
    inputs: Callable[[], dict[str, Tensor]],
    loss: Loss | None = None,
    **options: object,
) -> Architecture:
    """A model of several inputs."""
    return Architecture(family, model, made(config, model, inputs, **options), loss)
