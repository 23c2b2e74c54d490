"""Small members of the families of the coverage list, for comparison of numbers; made only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Tensor]]

TEXT: Final = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SEEN: Final = {**{k: v for k, v in TEXT.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}
STEPS: Final = {
    "d_model": 32,
    "vocab_size": 61,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
PYRAMID: Final = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}


class First(nn.Module):  # type: ignore[misc]
    """The first tensor that a module returns; dropout and stochastic depth off."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.eval()

    def forward(self, **inputs: Tensor) -> Tensor:
        output: object = self.module(**inputs)
        while not isinstance(output, Tensor):
            output = next(iter(output.values() if isinstance(output, Mapping) else output))  # type: ignore[call-overload]
        return output


def _transformers(
    config: str, model: str, inputs: Callable[[], dict[str, Tensor]], **options: object
) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        return First(getattr(transformers, model)(getattr(transformers, config)(**options))), inputs()

    return make


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.zeros(2, 12, dtype=torch.int64)}


def _masked() -> dict[str, Tensor]:
    return {**_tokens(), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}


def _pairs() -> dict[str, Tensor]:
    return {**_tokens(), "decoder_input_ids": torch.zeros(2, 8, dtype=torch.int64)}


def _image(size: int = 32, key: str = "pixel_values") -> Callable[[], dict[str, Tensor]]:
    return lambda: {key: torch.zeros(2, 3, size, size)}


def _text(stem: str, head: str, inputs: Callable[[], dict[str, Tensor]], **options: object) -> Callable[[], Made]:
    return _transformers(f"{stem}Config", stem + head, inputs, **{**TEXT, **options})


def _vision(stem: str, **options: object) -> Callable[[], Made]:
    return _transformers(f"{stem}Config", f"{stem}ForImageClassification", _image(), **{**SEEN, **options})


def _torchvision(name: str, size: int, key: str = "x", **options: object) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return First(torchvision.models.get_model(name, weights=None, **options)), _image(size, key)()

    return make


def _timm(name: str, size: int, **options: object) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return First(timm.create_model(name, pretrained=False, **options)), _image(size, "x")()

    return make


def _volo() -> Made:
    from timm.models.volo import VOLO

    module = VOLO((2, 1, 1, 1), 64, embed_dims=(24, 32, 32, 32), num_heads=(2, 2, 2, 2), mlp_ratio=2.0, num_classes=7)
    return First(module), {"x": torch.zeros(2, 3, 64, 64)}


def _mvit() -> Made:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    three = [3, 3, 3]
    blocks = [
        MSBlockConfig(1, 8, 16, three, three, [1, 1, 1], [1, 4, 4]),
        MSBlockConfig(2, 16, 16, three, three, [1, 2, 2], [1, 2, 2]),
    ]
    return First(MViT((32, 32), 4, blocks, True, False, True, True, num_classes=7)), {"x": torch.zeros(1, 3, 4, 32, 32)}


def _diffusers(model: str, inputs: Callable[[], dict[str, Tensor]], **options: object) -> Callable[[], Made]:
    def make() -> Made:
        import diffusers

        return First(getattr(diffusers, model)(**options)), inputs()

    return make


FAMILIES: Final[Mapping[str, Mapping[str, Callable[[], Made]]]] = {
    "decoder": {
        "gpt2": _transformers("GPT2Config", "GPT2LMHeadModel", _tokens, n_layer=2, n_embd=32, n_head=4, vocab_size=61),
        "opt": _text("OPT", "ForCausalLM", _tokens, ffn_dim=48, word_embed_proj_dim=32),
        "falcon": _text("Falcon", "ForCausalLM", _tokens),
        "bloom": _transformers(
            "BloomConfig", "BloomForCausalLM", _tokens, n_layer=2, hidden_size=32, n_head=4, vocab_size=61
        ),
        "gemma2": _text("Gemma2", "ForCausalLM", _tokens, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8),
        "phi3": _text("Phi3", "ForCausalLM", _tokens, num_key_value_heads=2, pad_token_id=0),
        "llama": _text("Llama", "ForCausalLM", _tokens, num_key_value_heads=2),
        "qwen3": _text("Qwen3", "ForCausalLM", _tokens, num_key_value_heads=2, head_dim=8),
        "olmo2": _text("Olmo2", "ForCausalLM", _tokens, num_key_value_heads=2, pad_token_id=0),
        "gpt_neox": _text("GPTNeoX", "ForCausalLM", _tokens),
        "granite": _text("Granite", "ForCausalLM", _tokens, num_key_value_heads=2),
        "mixtral": _text(
            "Mixtral",
            "ForCausalLM",
            _tokens,
            num_key_value_heads=2,
            num_local_experts=4,
            experts_implementation="batched_mm",
        ),
    },
    "scan": {
        "mamba": _transformers(
            "MambaConfig", "MambaForCausalLM", _tokens, hidden_size=16, num_hidden_layers=1, vocab_size=61
        ),
        "mamba2": _transformers(
            "Mamba2Config",
            "Mamba2ForCausalLM",
            _tokens,
            hidden_size=16,
            num_hidden_layers=1,
            vocab_size=61,
            num_heads=4,
            head_dim=8,
            state_size=8,
            n_groups=1,
            chunk_size=8,
        ),
        "rwkv": _transformers(
            "RwkvConfig",
            "RwkvForCausalLM",
            _tokens,
            hidden_size=16,
            attention_hidden_size=16,
            num_hidden_layers=2,
            vocab_size=61,
            use_cache=False,
        ),
        "lfm2": _text("Lfm2", "ForCausalLM", _tokens, num_key_value_heads=2, full_attn_idxs=[1]),
    },
    "encoder": {
        "bert": _text("Bert", "ForMaskedLM", _masked),
        "roberta": _text("Roberta", "ForMaskedLM", _masked, pad_token_id=60),
        "deberta": _text("DebertaV2", "ForMaskedLM", _masked),
        "fnet": _text("FNet", "ForMaskedLM", _tokens),
        "electra": _text("Electra", "ForMaskedLM", _masked, embedding_size=32),
        "albert": _text("Albert", "ForMaskedLM", _masked, embedding_size=16),
        "distilbert": _transformers(
            "DistilBertConfig",
            "DistilBertForMaskedLM",
            _masked,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=48,
            vocab_size=61,
        ),
        "modernbert": _text("ModernBert", "ForMaskedLM", _masked, pad_token_id=60, num_hidden_layers=3),
    },
    "encoder-decoder": {
        "t5": _transformers(
            "T5Config",
            "T5ForConditionalGeneration",
            _pairs,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=1,
            num_heads=4,
            vocab_size=61,
        ),
        "bart": _transformers("BartConfig", "BartForConditionalGeneration", _pairs, **STEPS),
        "marian": _transformers("MarianConfig", "MarianMTModel", _pairs, pad_token_id=60, **STEPS),
        "pegasus": _transformers("PegasusConfig", "PegasusForConditionalGeneration", _pairs, **STEPS),
    },
    "vision transformer": {
        "vit": _vision("ViT"),
        "beit": _vision("Beit"),
        "dinov2": _vision("Dinov2"),
        "deit": _vision("DeiT"),
        "volo": _volo,
        "mvit": _mvit,
        "timm_vit": _timm("vit_tiny_patch16_224", 32, img_size=32, depth=2, num_classes=7),
        "swin": _transformers(
            "SwinConfig",
            "SwinForImageClassification",
            _image(),
            image_size=32,
            patch_size=2,
            embed_dim=8,
            depths=[2, 1],
            num_heads=[2, 4],
            window_size=4,
        ),
    },
    "convolution": {
        "convnext": _transformers("ConvNextConfig", "ConvNextForImageClassification", _image(), **PYRAMID),
        "resnet18": _torchvision("resnet18", 64),
        "mobilenet_v2": _torchvision("mobilenet_v2", 64),
        "shufflenet": _torchvision("shufflenet_v2_x0_5", 64),
        "regnet": _timm("regnetx_002", 64),
    },
    "segmentation": {
        "segformer": _transformers(
            "SegformerConfig",
            "SegformerForSemanticSegmentation",
            _image(64),
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 24, 32],
            decoder_hidden_size=16,
        ),
        "lraspp": _torchvision("lraspp_mobilenet_v3_large", 64, "input", weights_backbone=None),
    },
    "detection": {
        "detr": _transformers(
            "DetrConfig",
            "DetrForObjectDetection",
            _image(64),
            use_timm_backbone=False,
            backbone=None,
            use_pretrained_backbone=False,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            num_queries=5,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            backbone_config={"model_type": "resnet", **PYRAMID, "embedding_size": 8, "out_features": ["stage4"]},
        ),
        "yolos": _transformers(
            "YolosConfig",
            "YolosForObjectDetection",
            _image(32),
            **{**SEEN, "image_size": [32, 32], "num_detection_tokens": 5},
        ),
    },
    "speech": {
        "audio_spectrogram": _transformers(
            "ASTConfig",
            "ASTForAudioClassification",
            lambda: {"input_values": torch.zeros(2, 64, 32)},
            **{k: v for k, v in SEEN.items() if k != "image_size"},
            max_length=64,
            num_mel_bins=32,
        ),
        "whisper": _transformers(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            lambda: {
                "input_features": torch.zeros(2, 16, 48),
                "decoder_input_ids": torch.zeros(2, 8, dtype=torch.int64),
            },
            **{
                **STEPS,
                "num_mel_bins": 16,
                "max_source_positions": 24,
                "pad_token_id": 60,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
            },
        ),
        "wav2vec2": _transformers(
            "Wav2Vec2Config",
            "Wav2Vec2ForCTC",
            lambda: {"input_values": torch.zeros(2, 800)},
            **{
                **TEXT,
                "vocab_size": 32,
                "conv_dim": [8, 8],
                "conv_stride": [5, 4],
                "conv_kernel": [10, 8],
                "num_conv_pos_embeddings": 8,
                "num_conv_pos_embedding_groups": 4,
            },
        ),
    },
    "series": {
        "patchtst": _transformers(
            "PatchTSTConfig",
            "PatchTSTForPrediction",
            lambda: {"past_values": torch.zeros(2, 32, 3)},
            context_length=32,
            num_input_channels=3,
            prediction_length=8,
            patch_length=8,
            patch_stride=4,
            num_hidden_layers=1,
            d_model=16,
            ffn_dim=24,
            num_attention_heads=4,
        ),
        "decision_transformer": _transformers(
            "DecisionTransformerConfig",
            "DecisionTransformerModel",
            lambda: {
                "states": torch.zeros(2, 4, 5),
                "actions": torch.zeros(2, 4, 3),
                "rewards": torch.zeros(2, 4, 1),
                "returns_to_go": torch.zeros(2, 4, 1),
                "timesteps": torch.zeros(2, 4, dtype=torch.int64),
            },
            n_layer=1,
            hidden_size=32,
            n_head=4,
            state_dim=5,
            act_dim=3,
        ),
    },
    "mixer": {
        "mixer": _timm("mixer_s32_224", 64, img_size=64, num_classes=7),
        "gmlp": _timm("gmlp_ti16_224", 32, img_size=32, num_classes=7),
        "resmlp": _timm("resmlp_12_224", 32, img_size=32, num_classes=7),
    },
    "diffusion": {
        "unet": _diffusers(
            "UNet2DModel",
            lambda: {"sample": torch.zeros(2, 3, 16, 16), "timestep": torch.zeros(2, dtype=torch.int64)},
            sample_size=16,
            layers_per_block=1,
            block_out_channels=(32, 64),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        ),
        "conditional_unet": _diffusers(
            "UNet2DConditionModel",
            lambda: {
                "sample": torch.zeros(1, 4, 16, 16),
                "timestep": torch.zeros(1, dtype=torch.int64),
                "encoder_hidden_states": torch.zeros(1, 5, 24),
            },
            sample_size=16,
            layers_per_block=1,
            block_out_channels=(32, 64),
            cross_attention_dim=24,
            attention_head_dim=4,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        ),
        "vae": _diffusers(
            "AutoencoderKL",
            lambda: {"sample": torch.zeros(1, 3, 16, 16)},
            block_out_channels=(16, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=8,
        ),
        "flux": _diffusers(
            "FluxTransformer2DModel",
            lambda: {
                "hidden_states": torch.zeros(1, 16, 8),
                "encoder_hidden_states": torch.zeros(1, 5, 24),
                "pooled_projections": torch.zeros(1, 12),
                "timestep": torch.zeros(1),
                "img_ids": torch.zeros(16, 3),
                "txt_ids": torch.zeros(5, 3),
            },
            in_channels=8,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=24,
            pooled_projection_dim=12,
            axes_dims_rope=(4, 6, 6),
        ),
        "stable_diffusion_3": _diffusers(
            "SD3Transformer2DModel",
            lambda: {
                "hidden_states": torch.zeros(1, 4, 8, 8),
                "encoder_hidden_states": torch.zeros(1, 5, 24),
                "pooled_projections": torch.zeros(1, 12),
                "timestep": torch.zeros(1, dtype=torch.int64),
            },
            sample_size=8,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=24,
            caption_projection_dim=32,
            pooled_projection_dim=12,
            pos_embed_max_size=8,
        ),
        "tiny_vae": _diffusers("AutoencoderTiny", lambda: {"sample": torch.zeros(1, 3, 16, 16)}),
        "dit": _diffusers(
            "DiTTransformer2DModel",
            lambda: {
                "hidden_states": torch.zeros(2, 4, 8, 8),
                "timestep": torch.zeros(2, dtype=torch.int64),
                "class_labels": torch.zeros(2, dtype=torch.int64),
            },
            num_layers=1,
            num_attention_heads=2,
            attention_head_dim=8,
            sample_size=8,
            num_embeds_ada_norm=10,
        ),
    },
}
"""Family -> name -> what makes the module and its inputs."""

PLAIN: Final = {
    "recurrent": ("lstm_cell", "bilstm", "state_space", "attended"),
    "language": ("linear_attention", "retention", "dense_experts", "hyena"),
    "graph network": ("gcn_dense", "gcn_sparse", "gat", "graph_sage"),
    "generative": ("generator", "discriminator", "couplings"),
    "science": ("siren", "fourier_operator", "neural_ode", "kan"),
    "others": ("temporal", "pointnet", "deepfm", "ppo", "super_resolution"),
}
"""Family -> entries of `benchmarks/published/plain_modules.py` that are small as they are."""

SINGLE: Final = frozenset(
    {
        *("bloom", "gemma2", "mamba", "mamba2", "phi3", "lfm2", "modernbert", "unet", "conditional_unet", "dit"),
        *("llama", "qwen3", "olmo2", "gpt_neox", "granite", "mixtral", "flux", "stable_diffusion_3"),
    }
)
"""Models that compute a part in float32 whatever the type of their weights."""
