"""Settings files of the frameworks beside Megatron-LM, DeepSpeed, torchtitan and FSDP: read whole, or refused by name.

Files as people have them, for each kind; then, for each vocabulary, misspelled words, words of other frameworks and
values of the wrong kind, generated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

import pytest
import yaml
from test_settings_words import Pair, Way, misspelled, refused, settings_of, words_of

from shardproof.models.sources.frameworks.fit import fit_settings, of_a_step
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.frameworks.places import of_yaml
from shardproof.models.sources.frameworks.words import Value, Word, vocabulary
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError

ACCELERATE: Final = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: false
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
parallelism_config:
  parallelism_config_cp_size: 1
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""

MEGATRON_PLUGIN: Final = """\
distributed_type: MEGATRON_LM
deepspeed_config: {}
fsdp_config: {}
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: false
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 2
  megatron_lm_use_distributed_optimizer: true
mixed_precision: bf16
num_processes: 8
"""

AXOLOTL: Final = """\
base_model: NousResearch/Meta-Llama-3.1-8B
load_in_8bit: false
load_in_4bit: false
strict: false
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
dataset_prepared_path: last_run_prepared
val_set_size: 0.05
output_dir: ./outputs/out
sequence_len: 8192
sample_packing: true
pad_to_sequence_len: true
adapter:
wandb_project:
gradient_accumulation_steps: 8
micro_batch_size: 1
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
flash_attention: true
warmup_steps: 100
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
special_tokens:
  pad_token: <|end_of_text|>
"""

NANOTRON: Final = """\
checkpoints:
  checkpoint_interval: 10
  checkpoints_path: checkpoints
general: {project: debug, run: tiny_llama_%date_%jobid, seed: 42, step: null}
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  init_method: {std: 0.025}
  model_config:
    hidden_size: 16
    intermediate_size: 64
    is_llama_config: true
    num_attention_heads: 4
    num_hidden_layers: 2
    num_key_value_heads: 4
    rope_theta: 10000.0
    vocab_size: 256
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  optimizer_factory: {adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08, name: adamW, torch_adam_is_fused: true}
  weight_decay: 0.01
  zero_stage: 1
parallelism: {dp: 2, expert_parallel_size: 1, pp: 2, pp_engine: 1f1b, tp: 2, tp_mode: REDUCE_SCATTER}
tokens:
  batch_accumulation_per_replica: 4
  micro_batch_size: 2
  sequence_length: 256
  train_steps: 15
"""

MAXTEXT: Final = """\
base_config: "base.yml"
run_name: "gpu_train_test"
hardware: "gpu"
steps: 10
per_device_batch_size: 2
model_name: "llama2-7b"
dcn_data_parallelism: 1
dcn_fsdp_parallelism: 2
ici_fsdp_parallelism: 8
ici_tensor_parallelism: 1
attention: "cudnn_flash_te"
remat_policy: "full"
use_iota_embed: True
scan_layers: False
dataset_type: "synthetic"
max_target_length: 4096
logits_dot_in_fp32: False
quantization: ""
"""

NEMO: Final = """\
name: megatron_gpt
trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
  max_steps: 100000
  accumulate_grad_batches: 1
  gradient_clip_val: 1.0
exp_manager:
  model_parallel_size: ${multiply:${model.tensor_model_parallel_size}, ${model.pipeline_model_parallel_size}}
model:
  micro_batch_size: 4
  global_batch_size: 64
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: True
  encoder_seq_length: 512
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 12
  hidden_size: 768
  ffn_hidden_size: 3072
  num_attention_heads: 12
  kv_channels: null
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
  fp8: False
  data:
    data_prefix: ???
    seq_length: ${model.encoder_seq_length}
    num_workers: 2
  optim:
    name: distributed_fused_adam
    lr: 2e-4
    sched: {name: CosineAnnealing, warmup_steps: 500}
"""

SCRIPT: Final = """\
#!/bin/bash
# a model of 175 billion parameters
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NUM_NODES=16
NODE_RANK=$SLURM_NODEID
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
DIR="$( cd "$(dirname "$0")" && pwd )"
CHECKPOINT_PATH=$1 #<Specify path>
DATA_PATH=$2
TP=${TP_SIZE:-8}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
)
MODEL_ARGS="
    --num-layers 96 \\
    --hidden-size 12288 \\
    --num-attention-heads 96 \\
    --seq-length 2048 \\
    --max-position-embeddings 2048
"
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size $((WORLD_SIZE * 12))   # twelve on each
    --lr-warmup-fraction .001
    --bf16
)
TRAINING_ARGS+=(--use-distributed-optimizer)
PARALLEL_ARGS=(--tensor-model-parallel-size $TP --pipeline-model-parallel-size 16)
mkdir -p logs
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    $MODEL_ARGS ${TRAINING_ARGS[@]} \\
    ${PARALLEL_ARGS[@]} \\
    --save $CHECKPOINT_PATH --data-path $DATA_PATH "$@" 2>&1 | tee logs/out.txt
"""

READ: Final = (
    (ACCELERATE, {"source": "accelerate", "tp": 2, "dp": 4, "zero": 3}),
    (MEGATRON_PLUGIN, {"source": "accelerate", "tp": 2, "pp": 2, "steps": 2, "sequence_parallel": True, "zero": 1}),
    (("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4, zero3_init_flag: true,"
     " offload_optimizer_device: none}\nnum_processes: 4\n"), {"zero": 3, "steps": 4}),
    ("distributed_type: MULTI_GPU\nmixed_precision: 'no'\n", {"zero": 0}),
    (AXOLOTL, {"source": "axolotl", "zero": 3, "micro_batch": 1, "steps": 8}),
    (NANOTRON, {"source": "nanotron", "tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2, "steps": 4, "global_batch": 16}),
    (MAXTEXT, {"source": "MaxText", "zero": 3, "dp": 16, "micro_batch": 2}),
    (("MaxText/configs/base.yml run_name=r ici_fsdp_parallelism=1 ici_data_parallelism=4 ici_tensor_sequence_parallelism=2 "
     "per_device_batch_size=1.5 remat_policy=none dtype=bfloat16"),
     {"tp": 2, "sequence_parallel": True, "dp": 4, "zero": 0, "micro_batch": 3}),
    (NEMO, {"source": "NeMo", "tp": 4, "sequence_parallel": True, "zero": 1, "micro_batch": 4, "global_batch": 64}),
    (("model.tensor_model_parallel_size=4 train.micro_batch_size=1 train.global_batch_size=64 mixed_precision=bf16_mixed "
     "ddp.use_distributed_optimizer=True"), {"source": "NeMo", "tp": 4, "zero": 1, "global_batch": 64}),
    ("torchrun --nproc_per_node=8 megatron_gpt_pretraining.py model.tensor_model_parallel_size=4 trainer.num_nodes=2",
     {"source": "NeMo", "tp": 4}),
    (('{"output_dir": "x", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": true, '
     '"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"backward_prefetch": "backward_pre"}, "learning_rate": 1e-5}'),
     {"source": "Hugging Face's Trainer", "zero": 2, "micro_batch": 2, "steps": 4}),
    (('{"output_dir": "x", "per_device_train_batch_size": 2, "bf16": true, "deepspeed": {"zero_optimization": {"stage": 3},'
     ' "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}}'), {"zero": 3, "micro_batch": 2}),
    ("--output_dir x --per_device_train_batch_size 4 --bf16 True --fsdp 'full_shard auto_wrap' --learning_rate 1e-5",
     {"source": "Hugging Face's Trainer", "zero": 3, "micro_batch": 4}),
    ("vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4 --data_parallel_size=2 --max-model-len 8k --dtype auto",
     {"source": "vLLM", "tp": 4, "dp": 2}),
    ("-tp 8 --max-num-seqs 256 --gpu-memory-utilization 0.9 --no-enable-prefix-caching", {"source": "vLLM", "tp": 8, "dp": 1}),
    ("model: meta-llama/Llama-3.1-8B\ntensor-parallel-size: 2\nmax-model-len: 4096\n", {"source": "vLLM", "tp": 2}),
    ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model m --tensor-parallel-size 8",
     {"source": "vLLM", "tp": 8}),
    ("sglang serve --model-path m --tp 8", {"source": "SGLang", "tp": 8}),
    ("python -m sglang.launch_server --model-path m --tp 8 --mem-fraction-static 0.8", {"source": "SGLang", "tp": 8}),
    (AXOLOTL.replace("gradient_accumulation_steps: 8\n", "batch_size: 8\n"), {"micro_batch": 1, "steps": 8, "global_batch": 0}),
    ("distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 8\n", {"devices": 1}),
    ("parallelism: &p {dp: 2, tp: 2}\ntokens: {micro_batch_size: 1}\ngeneral: {<<: {project: x}, run: y}\n", {"dp": 2, "tp": 2}),
    (NEMO.replace("tensor_model_parallel_size: 4", "tensor_model_parallel_size: ${oc.env:TP,4}"), {"tp": 4}),
    ("MODEL_ARGS:\n  --tensor-model-parallel-size: 2\n  --bf16: true\n  --swiglu: false\n", {"source": "Megatron", "tp": 2}),
    ("--tensor-model-parallel-size 2 --train-samples 220_000_000 --checkpoint-activations", {"tp": 2}),
    (("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun -N $SLURM_NNODES --ntasks-per-node=8 bash -c \"python x.py "
      "--tensor-model-parallel-size 2\" | tee log\n"), {"tp": 2, "devices": 32}),
    (SCRIPT, {"source": "Megatron", "tp": 8, "pp": 16, "zero": 1, "micro_batch": 1, "global_batch": 1536}),
    ("torchrun --nproc_per_node=8 -m torchtitan.train --parallelism.tensor_parallel_degree 2 --training.compile", {"tp": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), READ)
def test_files_are_read_whole(text: str, wanted: dict[str, object]) -> None:
    found = settings_of(text).flags
    assert {name: getattr(found, name) for name in wanted} == wanted


REFUSED: Final = (
    (ACCELERATE.replace("dp_replicate_size: 1", "dp_replicate_size: 2"), "line 21: parallelism_config"),
    (ACCELERATE.replace("offload_params: false", "offload_params: true"), "line 10: fsdp_config.fsdp_offload_params"),
    (ACCELERATE.replace("bf16\n", "fp8\n"), "line 16: mixed_precision 'fp8'"),
    (ACCELERATE.replace("type: FSDP", "type: DEEPSPEED"), "counts only with distributed_type: FSDP"),
    (MEGATRON_PLUGIN.replace("activations: false", "activations: true"), "line 8: megatron_lm_config"),
    ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z.json\n", "another file"),
    (AXOLOTL.replace("adapter:\n", "adapter: lora\n"), "line 14: adapter 'lora'"),
    (AXOLOTL.replace("adamw_torch_fused", "adamw_8bit"), "optimizer 'adamw_8bit'"),
    (AXOLOTL + "deepspeed: deepspeed_configs/zero3.json\n", "line 38: deepspeed"),
    (AXOLOTL + "micro_batch_size: 2\n", "line 38: 'micro_batch_size' stands twice"),
    (AXOLOTL + "sequence_parallel_degree: 4\n", "keys that go round"),
    (NANOTRON.replace("1f1b", "afab"), "pp_engine"),
    (NANOTRON.replace("zero_stage: 1", "zero_stage: 3"), "nanotron shards the optimizer alone"),
    (NANOTRON.replace("zero_stage: 1", "zero_stage: 1\n  zero_stage: 1"), "stands twice"),
    (MAXTEXT.replace('"full"', '"minimal"'), "line 12: remat_policy 'minimal'"),
    (MAXTEXT + "ici_data_parallelism: 2\n", "hybrid sharding"),
    (MAXTEXT + "ici_pipeline_parallelism: 2\n", "line 19: ici_pipeline_parallelism 2"),
    (MAXTEXT.replace('quantization: ""', 'quantization: "fp8"'), "8 bits"),
    (MAXTEXT + "mesh_axes: [data, fsdp]\n", "mesh_axes"),
    (NEMO.replace("fp8: False", "fp8: True"), "line 28: model.fp8"),
    (NEMO.replace("uniform", "block"), "activations_checkpoint_method"),
    (NEMO.replace("virtual_pipeline_model_parallel_size: null", "virtual_pipeline_model_parallel_size: 2"), "interleaving"),
    ("torchrun x.py --config-name=llama model.tensor_model_parallel_size=4", "config-name"),
    ('{"output_dir": "x", "per_device_train_batch_size": 2, "train_micro_batch_size_per_gpu": 1}', "train_micro"),
    ('{"output_dir": "x", "per_device_train_batch_size": 2, "optim": "paged_adamw_32bit"}', "moved to the host"),
    (('{"output_dir": "x", "per_device_train_batch_size": 2, "deepspeed": {"zero_optimization": {"stage": 3}, '
     '"train_micro_batch_size_per_gpu": 4}}'), "contradicts per_device_train_batch_size 2"),
    ("--tensor-parallel-size 4 --max-model-len 8192 --quantization fp8", "--quantization 'fp8'"),
    ("--tensor-parallel-size 4 --max-model-len 8192 --enable-expert-parallel", "--enable-expert-parallel"),
    ("--tp-size 8 --mem-fraction-static 0.8 --enable-dp-attention", "--enable-dp-attention"),
    (SCRIPT.replace("TP=${TP_SIZE:-8}", "TP=$3"), "line 32: --tensor-model-parallel-size $3 is a variable"),
    (SCRIPT.replace("TP=${TP_SIZE:-8}", "if [ $X ]; then TP=2; fi"), "--tensor-model-parallel-size $TP is a variable"),
    (SCRIPT.replace("TP=${TP_SIZE:-8}", "TP=8\nif [ -n \"$X\" ]; then TP=2; fi"), "line 12: 'if [ -n \"$X\" ]"),
    (SCRIPT.replace("--bf16", "$EXTRA_ARGS"), "$EXTRA_ARGS"),
    ("#!/bin/bash\naccelerate launch --config_file a.yaml --num_processes 8 train.py --bf16\n", "line 2"),
    ("distributed_type: &a FSDP\nmixed_precision: *a\n", "mixed_precision 'FSDP'"),
    ("a: &a\n  b: *a\n", "more than 64 objects"),
    ("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in
     zip("abcdefgh", "bcdefghi", strict=True)), "more than 65536 values"),
    (NEMO.replace("tensor_model_parallel_size: 4", "tensor_model_parallel_size: ${trainer.nobody}"), "is no value yet"),
    ("distributed_type: 'NO'\nfsdp_config: {fsdp_version: 2}\n", "counts only with distributed_type: FSDP"),
    (NANOTRON.replace("accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: false"), "accumulate_grad_in_fp32"),
    (AXOLOTL + "batch_size: 3\n", "batch_size 3: is not micro_batch_size 1 x gradient_accumulation_steps 8"),
    ("MODEL_ARGS:\n  --tensor-model-paralel-size: 2\n", "did you mean '--tensor-model-parallel-size'"),
    ("#!/bin/bash\nTP=2\n. env.sh\npython x.py --tensor-model-parallel-size $TP\n", "$TP is a variable of the shell"),
    ("distributed_type: FSDP\nmixed_precision: [bf16\n", "no YAML"),
    ("distributed_type: FSDP\n  mixed_precision: bf16\n", "no YAML"),
    ("distributed_type: !!python/object:os.system x\n", "tag"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_files_are_refused_at_the_word_that_matters(text: str, message: str) -> None:
    assert message in refused(text)


def test_a_script_lists_what_it_took_for_granted() -> None:
    found = settings_of(SCRIPT).to_json()
    assert {"GPUS_PER_NODE=8 by default", "TP_SIZE=8 by default", "arguments of the script: none"} <= set(
        found["no_effect"]
    )  # type: ignore[call-overload]
    assert found["not_said"] == ["--save", "--data-path"]


def test_sizes_of_files_are_the_models() -> None:
    sizes = {"layers": 2, "width": 16, "heads": 4, "kv_heads": 4, "hidden": 64, "vocabulary": 256, "sequence": 256}
    found = settings_of(NANOTRON)
    fit_settings(found, build("llama", batch=16, **sizes))
    for name, value in sizes.items():
        other = sizes | {name: value * 2}
        if name in ("heads", "kv_heads"):
            other |= {"heads": 8, "kv_heads": value * 2}
        with pytest.raises(InputError, match=r"model has|counts"):
            fit_settings(found, build("llama", batch=16, **other))


def test_servers_say_the_most_that_they_take() -> None:
    found = settings_of("--tensor-parallel-size 2 --max-model-len 64 --max-num-seqs 4")
    fit_settings(found, build("llama", layers=1, batch=4, sequence=64))
    for sizes in ({"batch": 8, "sequence": 64}, {"batch": 4, "sequence": 128}):
        with pytest.raises(InputError, match="at most"):
            fit_settings(found, build("llama", layers=1, **sizes))
    with pytest.raises(InputError, match="leave --train out"):
        of_a_step(found, build("llama", layers=1, batch=4, sequence=64), "adam", "none", None)


@pytest.mark.parametrize(
    ("text", "precision", "recompute"),
    [
        (ACCELERATE, "bf16-master:reduce=bfloat16", "all"),
        (AXOLOTL.replace("bf16: auto", "bf16: true"), "bf16-master:reduce=bfloat16", "all"),
        (AXOLOTL, "bf16-master:reduce=bfloat16", "all"),
        (NANOTRON, "bf16-master", None),
        (MAXTEXT + "dtype: bfloat16\n", "bf16-master", "all"),
        ("ici_fsdp_parallelism: 8\nper_device_batch_size: 1\n", "bf16-master", "all"),
        ("ici_fsdp_parallelism: 8\nper_device_batch_size: 1\ndtype: float32\n", None, "all"),
        (NEMO, "bf16-mixed", "all"),
        ('{"per_device_train_batch_size": 2, "output_dir": "x", "bf16": true}', "bf16-mixed", None),
    ],
)
def test_types_and_recomputation_of_a_step(text: str, precision: str | None, recompute: str | None) -> None:
    found = settings_of(text)
    assert found.precision == precision
    assert (None if found.recompute is None else found.recompute.value) == recompute


def _nested(pairs: list[Pair]) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, value in pairs:
        *above, last = name.split(".")
        at = out
        for part in above:
            inner = at.setdefault(part, {})
            at = inner if isinstance(inner, dict) else {}
        at[last] = value
    return out


def _yaml(pairs: list[Pair]) -> str:
    return yaml.safe_dump(_nested(pairs), sort_keys=False, default_flow_style=False)


def _json(pairs: list[Pair]) -> str:
    return json.dumps(_nested(pairs))


def _flags(pairs: list[Pair]) -> str:
    return " ".join(n if v is True else f"{n} {' '.join(map(str, v)) if isinstance(v, list) else v}" for n, v in pairs)


def _way(name: str, write: Callable[[list[Pair]], str], *base: Pair) -> Way:
    return Way(name, name, write, base)


WAYS: Final = {
    way.name: way
    for way in (
        _way("accelerate", _yaml, ("distributed_type", "FSDP"), ("num_processes", 8), ("main_process_ip", "x")),
        _way("axolotl", _yaml, ("base_model", "x"), ("micro_batch_size", 2), ("sequence_len", 8), ("datasets", [])),
        _way("nanotron", _yaml, ("parallelism.tp", 2), ("parallelism.dp", 1), ("tokens.train_steps", 9)),
        _way(
            "maxtext", _yaml, ("ici_fsdp_parallelism", 8), ("hardware", "gpu"), ("run_name", "x"), ("scan_layers", True)
        ),
        _way("nemo", _yaml, ("trainer.devices", 8), ("exp_manager", {"name": "x"}), ("trainer.max_steps", 9)),
        _way("trainer", _json, ("output_dir", "x"), ("learning_rate", 0.1), ("save_steps", 3), ("do_train", True)),
        _way("vllm", _flags, ("--max-model-len", 64), ("--gpu-memory-utilization", 0.9), ("--max-num-seqs", 2)),
        _way("sglang", _flags, ("--mem-fraction-static", 0.9), ("--context-length", 64), ("--tp-size", 2)),
    )
}
STEP: Final = {
    "nemo": 150,
    "trainer": 12,
    "axolotl": 9,
    "maxtext": 20,
    "accelerate": 4,
    "nanotron": 4,
    "vllm": 6,
    "sglang": 6,
}
"""Every which word of a vocabulary is misspelled: what is near costs milliseconds to find."""


def sample(word: Word, way: Way) -> Value:
    """A value that is right for the word."""
    table = way.known.values.get(word.name)
    if table is not None:
        right = [k for k, meant in table.items() if not str(meant).startswith("! ")]
        key = right[0]
        return key == "true" if key in ("true", "false") else int(key) if key.isdigit() else key
    same: dict[str, Value] = {
        "switch": True, "bool": True, "int": 1, "count": 1, "number": 0.5, "text": "words", "list": ["words"],
        "table": {"x": 1}, "any": 1,
    }  # fmt: skip
    return "full_shard" if word.about == "fsdp_words" else same[word.kind]


def file_with(way: Way, *pairs: Pair) -> str:
    names = {name for name, _ in pairs}
    return way.write([*(p for p in way.base if p[0] not in names), *pairs])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_misspelled_words_are_refused_by_name(way: Way) -> None:
    rng, known, tried = random.Random(38), way.known, 0
    dashed = way.name in ("vllm", "sglang")
    for word in words_of(way)[:: STEP[way.name]]:
        for wrong in dict.fromkeys(misspelled(word.name, rng)):
            same = wrong.replace("_", "-").replace("--no-", "--") in known.words if dashed else known.is_section(wrong)
            if wrong in known.words or wrong in known.foreign or same or wrong.startswith("---"):
                continue
            if any(wrong.startswith(f"{w}.") for w in known.words):
                continue
            shown = wrong.replace("_", "-") if dashed else wrong
            refused(file_with(way, (wrong, sample(word, way))), shown, shown.split(".")[0], shown.rpartition(".")[2])
            tried += 1
    assert tried > 60, tried


def test_words_of_another_framework_are_refused_by_name() -> None:
    rng, tried = random.Random(7), 0
    for way in WAYS.values():
        for other in WAYS.values():
            if other is way or (way.name in ("vllm", "sglang")) != (other.name in ("vllm", "sglang")):
                continue
            shared = sum(name in other.known.words for name, _ in way.base)
            if shared + 1 >= len(way.base):  # the file is as much the other's
                continue
            for word in rng.sample(words_of(other), 12):
                if word.name in way.known.words or way.known.is_section(word.name):
                    continue
                if any(word.name.startswith(f"{w}.") for w in way.known.words):
                    continue
                refused(file_with(way, (word.name, sample(word, other))), word.name, word.name.split(".")[0])
                tried += 1
    assert tried > 200, tried


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_known_word_is_read_listed_or_refused(way: Way) -> None:
    """No word vanishes: the answer names it, or the refusal does."""
    words = list(way.known.words.values())
    listed = refusals = 0
    for word in words[:: 11 if way.name == "nemo" else 1]:
        value = sample(word, way)
        try:
            found = settings_of(file_with(way, (word.name, value)))
        except InputError as error:
            assert word.name in str(error), (word, error)
            refusals += word.group == "unsupported"
            assert word.group in ("unsupported", "read"), error
            continue
        groups = found.to_json()
        names = {str(w) for g in groups.values() if isinstance(g, (list, dict)) for w in g}
        assert word.name in names, (word, groups)
        listed += 1
    assert listed > 20
    assert refusals > 3


WRONG: Final[dict[str, tuple[Value, ...]]] = {
    "bool": ("yes", 1), "int": ("two", 2.5, 1 << 50), "count": ("two", 2.5, 0, -1, 1 << 50), "number": ("much",),
    "text": (3, {"a": 1}),
}  # fmt: skip


@pytest.mark.parametrize("way", [w for w in WAYS.values() if w.name not in ("vllm", "sglang")], ids=lambda w: w.name)
def test_values_of_the_wrong_kind_are_refused_by_name(way: Way) -> None:
    tried = 0
    for word in words_of(way)[:: 9 if way.name == "nemo" else 1]:
        for value in WRONG.get(word.kind, ()):
            if value == 3 and word.name in way.known.values:
                continue
            refused(file_with(way, (word.name, value)), word.name, word.name.rpartition(".")[2])
            tried += 1
    assert tried > 10


def test_lines_are_those_of_the_words() -> None:
    data, lines = of_yaml(NEMO)
    text = NEMO.splitlines()
    assert lines["model.optim.name"] == 34 and lines["name"] == 1 and lines["exp_manager"] == 9
    for name, line in lines.items():
        assert name.rpartition(".")[2] in text[line - 1]
    assert isinstance(data["model"], dict)


def test_random_yaml_is_read_or_refused() -> None:
    rng = random.Random(3)
    lines = [line for text in (ACCELERATE, AXOLOTL, NANOTRON, MAXTEXT, NEMO) for line in text.splitlines()]
    lines += [
        "a: [",
        "b: {",
        "'",
        "- x",
        "? y",
        "*a",
        "&a b",
        "<<: *a",
        "\tc: 1",
        "---",
        "...",
        "%YAML",
        "x: !!set {a}",
        "d: 2024-13-45",
    ]
    for _ in range(600):
        text = "\n".join(rng.choice(lines) for _ in range(rng.randint(1, 9)))
        try:
            read_settings(text)
        except InputError as error:
            assert str(error).strip() and len(str(error)) < 3_000


def test_vocabularies_say_each_word_once() -> None:
    """Of a vocabulary: no read word among the others, and each table of values belongs to a word."""
    for name in ("accelerate", "axolotl", "trainer", "nanotron", "maxtext", "nemo", "vllm", "sglang", "fsdp_units"):
        known = vocabulary(name)
        assert set(known.values) <= set(known.words), name
        assert not set(known.foreign) & set(known.words), (name, set(known.foreign) & set(known.words))


def test_brackets_without_end_are_refused_at_once() -> None:
    """The parser of YAML takes the square of their depth: a hundred thousand took more than a minute."""
    with pytest.raises(InputError, match="line 2: more than 64 brackets"):
        of_yaml("a: 1\nb: " + "[" * 100_000)
    assert of_yaml("a: '" + "[" * 60 + "'\nb: [[1], {c: 2}]") == (
        {"a": "[" * 60, "b": [[1], {"c": 2}]},
        {"a": 1, "b": 2, "b..c": 2},
    )


LAUNCHES: Final = (
    ("torchrun --nproc_per_node 8 pretrain_gpt.py", 8),
    ("torchrun --nproc-per-node=8 --nnodes=2 pretrain_gpt.py", 16),
    ("N=8\nM=4\nW=$(($N*$M))\ntorchrun --nproc_per_node $N --nnodes $M pretrain_gpt.py", 32),
    ("torchrun --nproc_per_node gpu pretrain_gpt.py", 0),
    ("torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py", 0),
    ("accelerate launch --num_processes 16 --num_machines 2 pretrain_gpt.py", 16),
    ("deepspeed --num_gpus 8 --num_nodes 2 pretrain_gpt.py", 16),
    ("deepspeed --num_gpus 8 pretrain_gpt.py", 0),
    ("pretrain_gpt.py", 0),
)


@pytest.mark.parametrize(("launch", "devices"), LAUNCHES)
def test_processes_that_a_launcher_starts(launch: str, devices: int) -> None:
    found = read_settings(f"{launch} --tensor-model-parallel-size 2 --bf16")
    assert found is not None and found.flags.devices == devices
    for machine in (8, 16, 32):
        if devices in (0, machine):
            assert found.flags.copies(machine) == machine // 2
        else:
            with pytest.raises(InputError, match=f"{devices} processes are started on a machine of {machine} devices"):
                found.flags.copies(machine)


NEMO_STARTS: Final = (
    ("devices: 8", 8),
    ("devices: 8, num_nodes: 4", 32),
    ("devices: '8', num_nodes: 2", 16),
    ("devices: [0, 1, 2, 3], num_nodes: 2", 8),
    ("devices: -1", 0),
    ("devices: auto, num_nodes: 1", 0),
    ("num_nodes: 1", 0),
    ("num_nodes: 2", 0),
)


@pytest.mark.parametrize(("trainer", "devices"), NEMO_STARTS)
def test_processes_of_lightnings_trainer_are_the_machines_devices(trainer: str, devices: int) -> None:
    found = read_settings(f"trainer: {{{trainer}}}\nmodel: {{tensor_model_parallel_size: 2, bf16: true}}\n")
    assert found is not None and found.flags.source == "NeMo" and found.flags.devices == devices
    listed = found.to_json()["not_compared"]
    assert isinstance(listed, list)
    assert ("trainer.num_nodes" in listed) is ("num_nodes" in trainer and not devices)
    for machine in (8, 16, 32):
        if devices in (0, machine):
            assert found.flags.copies(machine) == machine // 2
        else:
            with pytest.raises(InputError, match=f"{devices} processes are started on a machine of {machine} devices"):
                found.flags.copies(machine)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ("devices: 0", "trainer.devices 0: is neither a number"),
        ("devices: []", "trainer.devices"),
        ("devices: two", "trainer.devices 'two'"),
        ("devices: true", "trainer.devices"),
        ("num_nodes: 0, devices: 8", "trainer.num_nodes is 0"),
    ],
)
def test_processes_of_lightnings_trainer_that_are_no_number(trainer: str, message: str) -> None:
    refused(f"trainer: {{{trainer}}}\nmodel: {{tensor_model_parallel_size: 2, bf16: true}}\n", message)


def test_axolotls_world_is_the_machine() -> None:
    text = "base_model: x\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\nfsdp: [full_shard]\nworld_size: 8\n"
    found = read_settings(text)
    assert found is not None and found.flags.source == "axolotl" and found.flags.devices == 8
    with pytest.raises(InputError, match="8 processes are started on a machine of 16 devices"):
        found.flags.copies(16)


def test_processes_of_a_file_are_the_machines_devices() -> None:
    found = read_settings(ACCELERATE)
    assert found is not None and found.flags.devices == 8 and found.flags.copies(8) == 4
    with pytest.raises(InputError, match="8 processes are started"):
        found.flags.copies(16)
