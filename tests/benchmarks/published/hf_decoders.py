"""Decoders of Hugging Face transformers: dense attention, mixtures of experts, scans."""

from __future__ import annotations

from hf_common import causal

DENSE, EXPERTS, SCANS = "decoder", "mixture of experts", "scan"
TWO = {"num_hidden_layers": 2}

gpt2 = causal(DENSE, "GPT2", "GPT2LMHeadModel", n_layer=2)
gpt_bigcode = causal(DENSE, "GPTBigCode", n_layer=2)
gpt_neo = causal(DENSE, "GPTNeo", num_layers=2, attention_types=[[["global", "local"], 1]])
gpt_neox = causal(DENSE, "GPTNeoX", num_hidden_layers=2, hidden_size=2048, num_attention_heads=16)
gptj = causal(DENSE, "GPTJ", n_layer=2)
codegen = causal(DENSE, "CodeGen", n_layer=2)
opt = causal(DENSE, "OPT", **TWO)
bloom = causal(DENSE, "Bloom", n_layer=2, hidden_size=1024, n_head=16)
mpt = causal(DENSE, "Mpt", n_layers=2)
falcon = causal(DENSE, "Falcon", **TWO)
llama = causal(DENSE, "Llama", **TWO)
llama3 = causal(
    DENSE,
    "Llama",
    vocab_size=128256,
    intermediate_size=14336,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    **TWO,
)
llama3_8b = causal(  # all of its 32 layers
    DENSE,
    "Llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
    max_position_embeddings=8192,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    length=8192,
)
mistral = causal(DENSE, "Mistral", **TWO)
qwen2 = causal(DENSE, "Qwen2", **TWO)
qwen3 = causal(DENSE, "Qwen3", **TWO)
gemma = causal(DENSE, "Gemma", **TWO)
gemma2 = causal(DENSE, "Gemma2", **TWO)
gemma3 = causal(DENSE, "Gemma3", config="Gemma3TextConfig", num_hidden_layers=6)
phi = causal(DENSE, "Phi", **TWO)
phi3 = causal(DENSE, "Phi3", **TWO)
stablelm = causal(DENSE, "StableLm", **TWO)
starcoder2 = causal(DENSE, "Starcoder2", **TWO)
olmo = causal(DENSE, "Olmo", **TWO)
olmo2 = causal(DENSE, "Olmo2", **TWO)
olmo3 = causal(DENSE, "Olmo3", num_hidden_layers=4)
cohere = causal(DENSE, "Cohere", **TWO)
cohere2 = causal(DENSE, "Cohere2", num_hidden_layers=4)
granite = causal(DENSE, "Granite", **TWO)
smollm3 = causal(DENSE, "SmolLM3", num_hidden_layers=4)
glm4 = causal(DENSE, "Glm4", **TWO)
nemotron = causal(DENSE, "Nemotron", num_key_value_heads=8, **TWO)
persimmon = causal(DENSE, "Persimmon", **TWO)
exaone4 = causal(DENSE, "Exaone4", num_hidden_layers=4)
biogpt = causal(DENSE, "BioGpt", **TWO)
xglm = causal(DENSE, "XGLM", num_layers=2)
diffllama = causal(DENSE, "DiffLlama", **TWO)
modernbert_decoder = causal(DENSE, "ModernBertDecoder", num_hidden_layers=3)
nanochat = causal(DENSE, "NanoChat", **TWO)

mixtral = causal(EXPERTS, "Mixtral", **TWO)
qwen2_moe = causal(EXPERTS, "Qwen2Moe", **TWO)
qwen3_moe = causal(EXPERTS, "Qwen3Moe", **TWO)
deepseek_v2 = causal(
    EXPERTS, "DeepseekV2", num_hidden_layers=2, first_k_dense_replace=1, num_experts_per_tok=6, n_group=8, topk_group=3
)
deepseek_v3 = causal(EXPERTS, "DeepseekV3", num_hidden_layers=2, first_k_dense_replace=1)
gpt_oss = causal(EXPERTS, "GptOss", **TWO)
olmoe = causal(EXPERTS, "Olmoe", **TWO)
granitemoe = causal(EXPERTS, "GraniteMoe", num_local_experts=8, num_experts_per_tok=2, **TWO)
phimoe = causal(EXPERTS, "Phimoe", **TWO)
dbrx = causal(EXPERTS, "Dbrx", n_layers=2, attn_config={"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 500000.0})
llama4 = causal(EXPERTS, "Llama4", config="Llama4TextConfig", **TWO)
jamba = causal(EXPERTS, "Jamba", num_hidden_layers=4, attn_layer_period=4, attn_layer_offset=2, length=16)

mamba = causal(SCANS, "Mamba", num_hidden_layers=2, length=16)
mamba2 = causal(SCANS, "Mamba2", **TWO)
falcon_mamba = causal(SCANS, "FalconMamba", num_hidden_layers=2, length=16)
rwkv = causal(SCANS, "Rwkv", num_hidden_layers=2, length=16)
recurrent_gemma = causal(SCANS, "RecurrentGemma", num_hidden_layers=3)
zamba2 = causal(SCANS, "Zamba2", num_hidden_layers=3, layer_types=["mamba", "mamba", "hybrid"], hybrid_layer_ids=[2])
falcon_h1 = causal(SCANS, "FalconH1", **TWO)
lfm2 = causal(SCANS, "Lfm2", num_hidden_layers=4, full_attn_idxs=[2])
qwen3_next = causal(SCANS, "Qwen3Next", num_hidden_layers=4, num_experts=16, num_experts_per_tok=4)
xlstm = causal(SCANS, "xLSTM", num_hidden_layers=2, hidden_size=1024, num_heads=4)
