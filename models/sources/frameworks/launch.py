r"""Plain launch scripts: the arguments of the program that they start, with variables and arrays replaced.

    GPUS_PER_NODE=${GPUS_PER_NODE:-8}
    WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
    MODEL_ARGS=(
        --tensor-model-parallel-size 8
        --sequence-parallel
    )
    torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py ${MODEL_ARGS[@]} --save $CHECKPOINT_PATH

A script is followed, and nothing is run (`scripts/`).  Conditions that only who starts it knows are followed both ways:
what is read has to be the same on each.  What stands in front of the program is the launcher's: as many processes as it
says have to be the machine's devices.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ...text import InputError
from .scripts.commands import options
from .scripts.quotes import Unread
from .scripts.runs import Doubt, Way, ways_of
from .words import WordError

_PROGRAM: Final = re.compile(r"[\w./${}()~-]*\.py", re.ASCII)
_PYTHON: Final = re.compile(r"([\w.$/{}-]*/)?(python[\d.]*|torchrun|launch)", re.ASCII)
_IMAGE: Final = re.compile(r"([\w.-]+/)*vllm-openai(:[\w.-]+)?", re.ASCII)
"""A container whose program is `vllm serve`."""

_MODULES: Final = re.compile(
    r"torch\.distributed\.(run|launch)|accelerate\.commands\.launch|pip|venv|ensurepip", re.ASCII
)

_ACCELERATE: Final = frozenset(
    {"--num_processes", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port", "--multi_gpu"}
    | {"--rdzv_backend", "--rdzv_conf", "--same_network", "--num_cpu_threads_per_process", "--gpu_ids", "--module"}
)
"""Flags of `accelerate launch` that say where processes run and nothing of a step."""

_STARTERS: Final = frozenset(
    {"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch"}
)
"""Launchers that start several processes on each node."""


@dataclass(frozen=True)
class Launched:
    """`arguments` of the training program, quoted; `others`: what stands before it, defaults, and variables nobody
    reads; `program`: its file or module; `devices`: processes that the launcher starts, 0 where it does not say;
    `doubts`: what was taken to hold, or not to, of what only who starts the script knows.
    """

    arguments: str
    others: tuple[str, ...]
    program: str = ""
    devices: int = 0
    doubts: tuple[Doubt, ...] = ()


def read_launch(text: str) -> Launched:
    """What a script starts, under no condition that is in doubt.  Raises `InputError` for one that cannot be read so.

    >>> found = read_launch("N=${N:-4}\\nA=(--tensor-model-parallel-size $N)\\ntorchrun pretrain_gpt.py ${A[@]} --bf16")
    >>> found.arguments, found.others
    ('--tensor-model-parallel-size 4 --bf16', ('torchrun', 'N=4 by default'))
    """
    return read_launches(text)[0]


def read_launches(text: str) -> tuple[Launched, ...]:
    """What a script starts, one for each way through it.  Raises `InputError`."""
    try:
        return tuple(_launched(way) for way in ways_of(text, lambda words: _program(words) is not None))
    except Unread as error:
        raise _refusal(str(error)) from None


def _launched(way: Way) -> Launched:
    words = list(way.words)
    found = _program(words)
    assert found is not None
    front = words[: found[0]]
    _launcher(front)
    shown = (shlex.join(front),) if front else ()
    others = (*shown, *way.defaults, *way.idle)
    return Launched(shlex.join(words[found[1] :]), others, words[found[0]], _processes(front), way.doubts)


def _processes(words: list[str]) -> int:
    """Processes that a launcher starts on all nodes, 0 where it does not say: torchrun takes one node where none is
    said, deepspeed those of its hostfile, accelerate counts the processes of all, Slurm and MPI the tasks.

    >>> _processes("torchrun --nproc_per_node 8 --nnodes=2".split()), _processes("deepspeed --num_gpus 8".split())
    (16, 0)
    >>> _processes("srun -N 2 --ntasks-per-node=8 python".split()), _processes("mpirun -np 8 python".split())
    (16, 8)
    """
    said = {name.replace("-", "_"): value for name, value in options(words).items()}

    def count(name: str) -> int:
        text = said.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0

    names = {w.rpartition("/")[2] for w in words}
    if "accelerate" in names:
        return count("num_processes")
    if "deepspeed" in names:
        return count("num_gpus") * count("num_nodes")
    if not names & _STARTERS and "srun" in names:
        return count("ntasks") or count("nodes") * count("ntasks_per_node")
    if not names & _STARTERS and names & {"mpirun", "mpiexec"}:
        after = next((b for a, b in pairwise(words) if a in ("-np", "-n", "--np")), "")
        return int(after) if after.isascii() and after.isdigit() and len(after) < 8 else 0
    return count("nproc_per_node") * (count("nnodes") if "nnodes" in said else 1)


def _program(words: list[str]) -> tuple[int, int] | None:
    """Where the program stands among the words, and where its arguments begin; None if none is known."""
    for k, word in enumerate(words):
        if word in ("vllm", "sglang") and words[k + 1 : k + 2] == ["serve"]:
            model = words[k + 2 : k + 3]
            return k, k + 3 if model and not model[0].startswith("-") else k + 2
        if _IMAGE.fullmatch(word) is not None:
            return k, k + 1
        module = words[k + 1] if word == "-m" and k + 1 < len(words) else ""
        if module and _MODULES.fullmatch(module) is None and any(_PYTHON.fullmatch(w) for w in words[:k]):
            return k + 1, k + 2
        if module and module in ("pip", "venv", "ensurepip"):
            return None
        if word == "-c" and k and _PYTHON.fullmatch(words[k - 1]):
            return None
        if _PROGRAM.fullmatch(word):
            return k, k + 1
    return None


def _launcher(words: list[str]) -> None:
    """Settings that a launcher is given are settings too: of accelerate's, which a file of its own says."""
    if not any(w.rpartition("/")[2] == "accelerate" for w in words):
        return
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name.replace("-", "_").replace("__", "--", 1) not in _ACCELERATE:
            raise WordError(
                "accelerate",
                name,
                f"{name} of accelerate launch says how the step is spread; give accelerate's YAML with it as the "
                "strategy, batch and types written into it",
            )


def _refusal(why: str) -> InputError:
    return InputError(
        f"is a launch script that cannot be read without running it: {why}; give the arguments of its program as a "
        "file, variables and arrays replaced by their values: --tensor-model-parallel-size 2 --sequence-parallel .."
    )


def unknown_value(framework: str, name: str, value: str) -> InputError:
    """The error of a setting whose value only who starts the script knows."""
    return WordError(framework, name, f"{name} {value[:60]} is a variable of the shell; write its value")
