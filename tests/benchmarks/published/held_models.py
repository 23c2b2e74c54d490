"""Architectures that were tried once the importer was finished: whatever of them is refused is so by its name."""

from __future__ import annotations

import torch
from diffusers_models import _denoiser
from entries import ids, labelled, regressed
from hf_common import causal, encoder, seen, several, translator
from timm_models import _named

TWO = {"num_hidden_layers": 2}
VIT = "vision transformer"

jetmoe = causal("mixture of experts", "JetMoe", **TWO)
granitemoe_shared = causal("mixture of experts", "GraniteMoeShared", shared_intermediate_size=1024, **TWO)
hunyuan_moe = causal("mixture of experts", "HunYuanMoEV1", head_dim=128, num_experts=8, moe_topk=2, **TWO)
openai_gpt = causal("decoder", "OpenAIGPT", "OpenAIGPTLMHeadModel", n_layer=2)
ctrl = causal("decoder", "CTRL", "CTRLLMHeadModel", n_layer=2)

luke = encoder("Luke", "ForSequenceClassification", **TWO)
splinter = encoder("Splinter", "Model", **TWO)
mra = encoder("Mra", **TWO)
plbart = translator("PLBart", encoder_layers=2, decoder_layers=2)
prophetnet = translator("ProphetNet", num_encoder_layers=2, num_decoder_layers=2)

vit_msn = seen(VIT, "ViTMSNForImageClassification", "ViTMSNConfig", 2, 3, 224, 224, loss=labelled(2), **TWO)
donut_swin = seen(
    VIT, "DonutSwinModel", "DonutSwinConfig", 2, 3, 224, 224, loss=regressed(2, 49, 768), depths=[1, 1, 1, 1]
)
upernet = seen(
    "segmentation", "UperNetForSemanticSegmentation", "UperNetConfig", 2, 3, 256, 256, loss=labelled(2, 256, 256)
)
conditional_detr = seen(
    "detection",
    "ConditionalDetrModel",
    "ConditionalDetrConfig",
    1,
    3,
    256,
    256,
    loss=regressed(1, 300, 256),
    encoder_layers=1,
    decoder_layers=1,
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone=None,
    backbone_config={"model_type": "resnet", "depths": [1, 1, 1, 1], "out_features": ["stage4"]},
)
unispeech = seen(
    "speech", "UniSpeechForCTC", "UniSpeechConfig", 2, 16000, key="input_values", apply_spec_augment=False, **TWO
)
data2vec_audio = seen(
    "speech",
    "Data2VecAudioForCTC",
    "Data2VecAudioConfig",
    2,
    16000,
    key="input_values",
    apply_spec_augment=False,
    **TWO,
)
layoutlm = several(
    "document",
    "LayoutLMForSequenceClassification",
    "LayoutLMConfig",
    lambda: {"input_ids": ids(2, 64), "bbox": torch.zeros(2, 64, 4, dtype=torch.int64)},
    labelled(2),
    **TWO,
)
perceiver = several(
    "encoder",
    "PerceiverForMaskedLM",
    "PerceiverConfig",
    lambda: {"inputs": ids(2, 64)},
    labelled(2, 64),
    num_self_attends_per_block=2,
    max_position_embeddings=64,
)

timm_convit = _named("convit_tiny", family=VIT, depth=2)
timm_visformer = _named("visformer_tiny", family=VIT)
timm_nest = _named("nest_tiny", family=VIT)
timm_skresnet = _named("skresnet18")
timm_resnest = _named("resnest14d")
timm_gcresnet = _named("gcresnet33ts")
timm_halonet = _named("halonet26t", 256)
timm_botnet = _named("botnet26t_256", 256)
timm_lambda = _named("lambda_resnet26t", 256)
timm_selecsls = _named("selecsls42")

prior = _denoiser(
    "PriorTransformer",
    (2, 768),
    lambda: {
        "hidden_states": torch.zeros(2, 768),
        "timestep": ids(2),
        "proj_embedding": torch.zeros(2, 768),
        "encoder_hidden_states": torch.zeros(2, 77, 768),
    },
    num_layers=2,
)
