"""Speech, series, and models of several modalities of Hugging Face transformers."""

from __future__ import annotations

import torch
from entries import ids, labelled, next_token, own_loss, regressed, regressed_second
from hf_common import seen, several
from torch import Tensor

TWO = {"num_hidden_layers": 2}
SOUND = (2, 16000)
AS_IT_IS = {"apply_spec_augment": False, "layerdrop": 0.0}

wav2vec2 = seen("speech", "Wav2Vec2ForCTC", "Wav2Vec2Config", *SOUND, key="input_values", **TWO, **AS_IT_IS)
hubert = seen("speech", "HubertModel", "HubertConfig", *SOUND, key="input_values", **TWO, **AS_IT_IS)
wavlm = seen(
    "speech", "WavLMModel", "WavLMConfig", *SOUND, key="input_values", loss=regressed(2, 49, 768), **TWO, **AS_IT_IS
)
wav2vec2_conformer = seen(
    "speech",
    "Wav2Vec2ConformerModel",
    "Wav2Vec2ConformerConfig",
    *SOUND,
    key="input_values",
    loss=regressed(2, 49, 768),
    **TWO,
    **AS_IT_IS,
)
audio_spectrogram = seen(
    "speech", "ASTForAudioClassification", "ASTConfig", 2, 1024, 128, key="input_values", loss=labelled(2), **TWO
)
encodec = seen("speech", "EncodecModel", "EncodecConfig", 1, 1, 9600, key="input_values")
parakeet = seen(
    "speech", "ParakeetEncoder", "ParakeetEncoderConfig", 2, 256, 80, key="input_features", layerdrop=0.0, **TWO
)


def _heard() -> dict[str, Tensor]:
    return {"input_features": torch.zeros(2, 80, 3000), "decoder_input_ids": ids(2, 32)}


whisper = several(
    "speech",
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    _heard,
    labelled(2, 32),
    encoder_layers=2,
    decoder_layers=2,
)


def _transcribed() -> dict[str, Tensor]:
    return {"input_features": torch.zeros(2, 256, 80), "decoder_input_ids": ids(2, 32)}


speech_to_text = several(
    "speech",
    "Speech2TextForConditionalGeneration",
    "Speech2TextConfig",
    _transcribed,
    labelled(2, 32),
    encoder_layers=2,
    decoder_layers=2,
    encoder_layerdrop=0.0,
    decoder_layerdrop=0.0,
)


def _paired(size: int = 224, length: int = 77) -> dict[str, Tensor]:
    return {
        "input_ids": ids(2, length),
        "pixel_values": torch.zeros(2, 3, size, size),
        "attention_mask": torch.ones(2, length, dtype=torch.int64),
    }


clip = several("image and text", "CLIPModel", "CLIPConfig", _paired, own_loss, text_config=TWO, vision_config=TWO)
siglip = several(
    "image and text",
    "SiglipModel",
    "SiglipConfig",
    lambda: {"input_ids": ids(2, 64), "pixel_values": torch.zeros(2, 3, 224, 224)},
    text_config=TWO,
    vision_config=TWO,
)
blip = several(
    "image and text",
    "BlipForConditionalGeneration",
    "BlipConfig",
    lambda: _paired(384, 32),
    next_token,
    text_config=TWO,
    vision_config=TWO,
)
vilt = several("image and text", "ViltModel", "ViltConfig", lambda: _paired(384, 40), **TWO)
owlvit = several(
    "image and text",
    "OwlViTForObjectDetection",
    "OwlViTConfig",
    lambda: {"input_ids": ids(4, 16), "pixel_values": torch.zeros(2, 3, 768, 768)},
    text_config=TWO,
    vision_config=TWO,
)
llava = several(
    "image and text",
    "LlavaForConditionalGeneration",
    "LlavaConfig",
    lambda: {"input_ids": ids(1, 640), "pixel_values": torch.zeros(1, 3, 336, 336)},
    next_token,
    text_config={"model_type": "llama", **TWO},
    vision_config={
        "model_type": "clip_vision_model",
        "num_hidden_layers": 3,
        "image_size": 336,
        "patch_size": 14,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "projection_dim": 768,
    },
    image_token_index=0,
)
paligemma = several(
    "image and text",
    "PaliGemmaForConditionalGeneration",
    "PaliGemmaConfig",
    lambda: {"input_ids": ids(1, 320), "pixel_values": torch.zeros(1, 3, 224, 224)},
    next_token,
    text_config={
        "model_type": "gemma",
        "num_hidden_layers": 2,
        "vocab_size": 257216,
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "intermediate_size": 16384,
    },
    vision_config={
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 2,
        "image_size": 224,
        "patch_size": 14,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
    },
)
patchtst = seen(
    "series",
    "PatchTSTForPrediction",
    "PatchTSTConfig",
    4,
    512,
    7,
    key="past_values",
    loss=labelled(4, 96, 7, dtype=torch.float32, key="future_values"),
    context_length=512,
    num_input_channels=7,
    prediction_length=96,
    patch_length=16,
    patch_stride=16,
    num_hidden_layers=2,
)
patchtsmixer = seen(
    "series",
    "PatchTSMixerForPrediction",
    "PatchTSMixerConfig",
    4,
    512,
    7,
    key="past_values",
    loss=labelled(4, 96, 7, dtype=torch.float32, key="future_values"),
    context_length=512,
    num_input_channels=7,
    prediction_length=96,
    patch_length=16,
    patch_stride=16,
    num_layers=2,
)
decision_transformer = several(
    "series",
    "DecisionTransformerModel",
    "DecisionTransformerConfig",
    lambda: {
        "states": torch.zeros(2, 20, 17),
        "actions": torch.zeros(2, 20, 4),
        "rewards": torch.zeros(2, 20, 1),
        "returns_to_go": torch.zeros(2, 20, 1),
        "timesteps": ids(2, 20),
        "attention_mask": torch.ones(2, 20, dtype=torch.int64),
    },
    loss=regressed_second(2, 20, 4),
    n_layer=2,
)
