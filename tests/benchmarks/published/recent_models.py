"""Architectures that were in no list while the importer was written: recent decoders, hybrids, denoisers, encoders."""

from __future__ import annotations

import torch
from diffusers_models import _denoiser
from entries import ids, labelled
from hf_common import causal, encoder, seen
from timm_models import _named

DENSE, EXPERTS, SCANS = "decoder", "mixture of experts", "scan"
TWO = {"num_hidden_layers": 2}

apertus = causal(DENSE, "Apertus", **TWO)
arcee = causal(DENSE, "Arcee", **TWO)
bitnet = causal(DENSE, "BitNet", **TWO)
doge = causal(DENSE, "Doge", **TWO)
ernie4_5 = causal(DENSE, "Ernie4_5", **TWO)
glm = causal(DENSE, "Glm", **TWO)
helium = causal(DENSE, "Helium", **TWO)
hunyuan_dense = causal(DENSE, "HunYuanDenseV1", head_dim=128, **TWO)
seed_oss = causal(DENSE, "SeedOss", **TWO)
ministral = causal(DENSE, "Ministral", head_dim=128, **TWO)
vaultgemma = causal(DENSE, "VaultGemma", **TWO)
glm4_moe = causal(EXPERTS, "Glm4Moe", n_routed_experts=16, first_k_dense_replace=1, **TWO)
ernie4_5_moe = causal(EXPERTS, "Ernie4_5_Moe", num_hidden_layers=2)
flex_olmo = causal(EXPERTS, "FlexOlmo", **TWO)
dots1 = causal(
    EXPERTS, "Dots1", n_shared_experts=1, n_routed_experts=16, num_experts_per_tok=4, first_k_dense_replace=1, **TWO
)
lfm2_moe = causal(EXPERTS, "Lfm2Moe", num_hidden_layers=4, layer_types=["conv", "conv", "full_attention", "conv"])
minimax = causal(EXPERTS, "MiniMax", num_hidden_layers=2)
bamba = causal(SCANS, "Bamba", num_hidden_layers=2, attn_layer_indices=[1])
granite_hybrid = causal(SCANS, "GraniteMoeHybrid", num_hidden_layers=2, layer_types=["mamba", "attention"])
nemotron_h = causal(SCANS, "NemotronH", num_hidden_layers=3, hybrid_override_pattern="M-*")

eurobert = encoder("EuroBert", **TWO)
rembert = encoder("RemBert", **TWO)
ernie = encoder("Ernie", **TWO)
xmod = encoder("RobertaPreLayerNorm", **TWO)

VIT = "vision transformer"
dinov2_registers = seen(
    VIT,
    "Dinov2WithRegistersForImageClassification",
    "Dinov2WithRegistersConfig",
    2,
    3,
    224,
    224,
    loss=labelled(2),
    **TWO,
)
ijepa = seen(VIT, "IJepaForImageClassification", "IJepaConfig", 2, 3, 224, 224, loss=labelled(2), **TWO)
bit = seen(
    "convolution", "BitForImageClassification", "BitConfig", 2, 3, 224, 224, loss=labelled(2), depths=[1, 1, 1, 1]
)
data2vec_vision = seen(
    VIT, "Data2VecVisionForImageClassification", "Data2VecVisionConfig", 2, 3, 224, 224, loss=labelled(2), **TWO
)
swin2sr = seen("convolution", "Swin2SRModel", "Swin2SRConfig", 1, 3, 64, 64, loss=None, depths=[1, 1], num_heads=[6, 6])
sew = seen("speech", "SEWForCTC", "SEWConfig", 2, 16000, key="input_values", apply_spec_augment=False, **TWO)

timm_caformer = _named("caformer_s18", family=VIT)
timm_efficientformer = _named("efficientformerv2_s0", family=VIT)
timm_mobilevitv2 = _named("mobilevitv2_050", 256, family=VIT)
timm_nextvit = _named("nextvit_small", family=VIT)
timm_siglip = _named("vit_base_patch16_siglip_224", family=VIT, depth=2)
timm_hgnet = _named("hgnetv2_b0")
timm_rdnet = _named("rdnet_tiny")

qwen_image = _denoiser(
    "QwenImageTransformer2DModel",
    (1, 256, 64),
    lambda: {
        "hidden_states": torch.zeros(1, 256, 64),
        "encoder_hidden_states": torch.zeros(1, 32, 3584),
        "encoder_hidden_states_mask": torch.ones(1, 32, dtype=torch.int64),
        "timestep": torch.zeros(1),
        "img_shapes": [(1, 16, 16)],
    },
    num_layers=1,
)
lumina2 = _denoiser(
    "Lumina2Transformer2DModel",
    (1, 16, 32, 32),
    lambda: {
        "hidden_states": torch.zeros(1, 16, 32, 32),
        "timestep": torch.zeros(1),
        "encoder_hidden_states": torch.zeros(1, 16, 1024),
        "encoder_attention_mask": torch.ones(1, 16, dtype=torch.bool),
    },
    num_layers=1,
    num_refiner_layers=1,
)
ltx_video = _denoiser(
    "LTXVideoTransformer3DModel",
    (1, 128, 128),
    lambda: {
        "hidden_states": torch.zeros(1, 128, 128),
        "encoder_hidden_states": torch.zeros(1, 32, 4096),
        "timestep": ids(1),
        "encoder_attention_mask": torch.ones(1, 32),
        "num_frames": 2,
        "height": 8,
        "width": 8,
    },
    num_layers=1,
)
aura_flow = _denoiser(
    "AuraFlowTransformer2DModel",
    (1, 4, 32, 32),
    lambda: {
        "hidden_states": torch.zeros(1, 4, 32, 32),
        "encoder_hidden_states": torch.zeros(1, 64, 2048),
        "timestep": torch.zeros(1),
    },
    sample_size=32,
    num_mmdit_layers=1,
    num_single_dit_layers=1,
)
control_net = _denoiser(
    "ControlNetModel",
    (1, 320, 32, 32),
    lambda: {
        "sample": torch.zeros(1, 4, 32, 32),
        "timestep": ids(1),
        "encoder_hidden_states": torch.zeros(1, 77, 768),
        "controlnet_cond": torch.zeros(1, 3, 256, 256),
    },
    layers_per_block=1,
    cross_attention_dim=768,
)
autoencoder_dc = _denoiser(
    "AutoencoderDC",
    (1, 3, 64, 64),
    lambda: {"sample": torch.zeros(1, 3, 64, 64)},
    latent_channels=8,
    encoder_block_out_channels=(32, 64),
    decoder_block_out_channels=(32, 64),
    encoder_layers_per_block=(1, 1),
    decoder_layers_per_block=(1, 1),
    encoder_block_types="ResBlock",
    decoder_block_types="ResBlock",
    encoder_qkv_multiscales=((), ()),
    decoder_qkv_multiscales=((), ()),
    decoder_norm_types="rms_norm",
    decoder_act_fns="silu",
)
stable_diffusion_published = _denoiser(
    "UNet2DConditionModel",
    (1, 4, 64, 64),
    lambda: {
        "sample": torch.zeros(1, 4, 64, 64),
        "timestep": ids(1),
        "encoder_hidden_states": torch.zeros(1, 77, 768),
    },
    sample_size=64,
    cross_attention_dim=768,
)
