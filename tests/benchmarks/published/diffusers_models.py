"""Denoisers and autoencoders of diffusers from their configurations."""

from __future__ import annotations

from collections.abc import Callable

import diffusers
import torch
from entries import Architecture, Built, ids, regressed
from torch import Tensor

FAMILY = "diffusion"


def _denoiser(
    model: str, target: tuple[int, ...], inputs: Callable[[], dict[str, Tensor]], **options: object
) -> Architecture:
    def build() -> Built:
        return getattr(diffusers, model)(**options), inputs()

    return Architecture(FAMILY, model, build, regressed(*target))


unet_2d = _denoiser(
    "UNet2DModel",
    (2, 3, 64, 64),
    lambda: {"sample": torch.zeros(2, 3, 64, 64), "timestep": ids(2)},
    sample_size=64,
    layers_per_block=1,
    block_out_channels=(128, 128, 256, 512),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
)
stable_diffusion_unet = _denoiser(
    "UNet2DConditionModel",
    (2, 4, 64, 64),
    lambda: {
        "sample": torch.zeros(2, 4, 64, 64),
        "timestep": ids(2),
        "encoder_hidden_states": torch.zeros(2, 77, 768),
    },
    sample_size=64,
    layers_per_block=1,
    cross_attention_dim=768,
)
sdxl_unet = _denoiser(
    "UNet2DConditionModel",
    (2, 4, 64, 64),
    lambda: {
        "sample": torch.zeros(2, 4, 64, 64),
        "timestep": ids(2),
        "encoder_hidden_states": torch.zeros(2, 77, 2048),
    },
    sample_size=64,
    layers_per_block=1,
    block_out_channels=(320, 640, 1280),
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    transformer_layers_per_block=(1, 1, 2),
    attention_head_dim=(5, 10, 20),
    cross_attention_dim=2048,
    use_linear_projection=True,
)
unet_1d = _denoiser(
    "UNet1DModel",
    (2, 14, 32),
    lambda: {"sample": torch.zeros(2, 14, 32), "timestep": ids(2)},
    sample_size=32,
    in_channels=14,
    out_channels=14,
    time_embedding_type="positional",
    use_timestep_embedding=True,
    flip_sin_to_cos=False,
    freq_shift=1,
    block_out_channels=(32, 64, 128, 256),
    down_block_types=("DownResnetBlock1D",) * 4,
    up_block_types=("UpResnetBlock1D",) * 3,
    mid_block_type="MidResTemporalBlock1D",
    out_block_type="OutConv1DBlock",
    act_fn="mish",
    layers_per_block=1,
    downsample_each_block=False,
)
vae = _denoiser(
    "AutoencoderKL",
    (1, 3, 256, 256),
    lambda: {"sample": torch.zeros(1, 3, 256, 256)},
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    latent_channels=4,
)
tiny_vae = _denoiser("AutoencoderTiny", (1, 3, 256, 256), lambda: {"sample": torch.zeros(1, 3, 256, 256)})
vq_model = _denoiser("VQModel", (1, 3, 64, 64), lambda: {"sample": torch.zeros(1, 3, 64, 64)}, block_out_channels=(64,))
dit = _denoiser(
    "DiTTransformer2DModel",
    (2, 4, 32, 32),
    lambda: {"hidden_states": torch.zeros(2, 4, 32, 32), "timestep": ids(2), "class_labels": ids(2)},
    num_layers=2,
)
pixart = _denoiser(
    "PixArtTransformer2DModel",
    (2, 8, 64, 64),
    lambda: {
        "hidden_states": torch.zeros(2, 4, 64, 64),
        "encoder_hidden_states": torch.zeros(2, 120, 4096),
        "timestep": ids(2),
    },
    num_layers=2,
    sample_size=64,
    cross_attention_dim=1152,
    caption_channels=4096,
)
stable_diffusion_3 = _denoiser(
    "SD3Transformer2DModel",
    (1, 16, 64, 64),
    lambda: {
        "hidden_states": torch.zeros(1, 16, 64, 64),
        "encoder_hidden_states": torch.zeros(1, 154, 4096),
        "pooled_projections": torch.zeros(1, 2048),
        "timestep": ids(1),
    },
    num_layers=2,
)
flux = _denoiser(
    "FluxTransformer2DModel",
    (1, 1024, 64),
    lambda: {
        "hidden_states": torch.zeros(1, 1024, 64),
        "encoder_hidden_states": torch.zeros(1, 128, 4096),
        "pooled_projections": torch.zeros(1, 768),
        "timestep": torch.zeros(1),
        "img_ids": torch.zeros(1024, 3),
        "txt_ids": torch.zeros(128, 3),
        "guidance": torch.zeros(1),
    },
    num_layers=1,
    num_single_layers=1,
    guidance_embeds=True,
)
sana = _denoiser(
    "SanaTransformer2DModel",
    (1, 32, 32, 32),
    lambda: {
        "hidden_states": torch.zeros(1, 32, 32, 32),
        "encoder_hidden_states": torch.zeros(1, 300, 2304),
        "timestep": ids(1),
    },
    num_layers=2,
)
cogvideox = _denoiser(
    "CogVideoXTransformer3DModel",
    (1, 4, 16, 32, 32),
    lambda: {
        "hidden_states": torch.zeros(1, 4, 16, 32, 32),
        "encoder_hidden_states": torch.zeros(1, 226, 4096),
        "timestep": ids(1),
    },
    num_layers=2,
    sample_height=32,
    sample_width=32,
    sample_frames=13,
)
wan = _denoiser(
    "WanTransformer3DModel",
    (1, 16, 4, 32, 32),
    lambda: {
        "hidden_states": torch.zeros(1, 16, 4, 32, 32),
        "encoder_hidden_states": torch.zeros(1, 128, 4096),
        "timestep": ids(1),
    },
    num_layers=2,
)
uvit = _denoiser(
    "UVit2DModel",
    (2, 8192, 16, 16),
    lambda: {
        "input_ids": ids(2, 16, 16),
        "encoder_hidden_states": torch.zeros(2, 77, 768),
        "pooled_text_emb": torch.zeros(2, 768),
        "micro_conds": torch.zeros(2, 5),
    },
    num_hidden_layers=2,
)
