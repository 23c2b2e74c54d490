"""Commands of scripts by what they do to what is started: they set variables, end the script, or change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from .expansions import Value

DECLARES: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
ASKS: Final = frozenset({"[", "[[", "test"})
UNSURE: Final = frozenset({"command", "which", "grep", "type", "hash", "nvidia-smi", "egrep", "diff"})
IDLE: Final = frozenset(
    {
        "set",
        "cd",
        "mkdir",
        "echo",
        "module",
        "ulimit",
        "umask",
        "sleep",
        "wait",
        "conda",
        "pip",
        "pip3",
        "pushd",
        "popd",
    }
    | {
        "hostname",
        "date",
        "ls",
        "env",
        "printf",
        "rm",
        "cp",
        "mv",
        "cat",
        "touch",
        "ln",
        "chmod",
        "chown",
        "head",
        "tail",
    }
    | {
        "sed",
        "awk",
        "tee",
        "git",
        "wget",
        "curl",
        "tar",
        "unzip",
        "df",
        "free",
        "scontrol",
        "squeue",
        "trap",
        "true",
        ":",
    }
    | {"false", "kill", "apt", "apt-get", "gsutil", "gcloud", "huggingface-cli", "hf", "wandb", "ray", "shopt", "find"}
    | {
        "lscpu",
        "rsync",
        "shift",
        "break",
        "continue",
        "xargs",
        "sort",
        "uniq",
        "tr",
        "cut",
        "wc",
        "nvidia-cuda-mps-control",
    }
    | {"du", "pwd", "whoami", "id", "uname", "yes", "scancel", "ml", "modprobe", "sync", "ifconfig", "ip", "jq", "let"}
    | {
        "spack",
        "clear",
        "nproc",
        "seq",
        "hostnamectl",
        "numactl",
        "lsof",
        "pgrep",
        "ssh-keygen",
        "basename",
        "dirname",
        "realpath",
        "readlink",
        "exec",
        *UNSURE,
    }
)
"""Commands that start no program of a framework and set nothing; `exec` alone moves files."""

SHOWS: Final = frozenset(
    {"echo", "printf", "cat", "ls", "cp", "mv", "rm", "sed", "grep", "touch", "chmod", "tee", "git", "ln"}
)
"""Commands that may name a program and start none."""

ENDS: Final = frozenset({"exit", "return"})
PASSES: Final = frozenset({"eval", "time", "nohup", "sudo", "stdbuf", "exec"})
TRAINERS: Final = frozenset({"axolotl", "llamafactory-cli", "tune", "nemo", "trl"})
SHELLS: Final = frozenset({"sh", "bash", "/bin/bash", "/bin/sh", "zsh"})
_BATCH: Final = re.compile(r"^#(?:SBATCH|PBS)[ \t]+(.*)$", re.MULTILINE)
_SLURM: Final = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}
_SHORT: Final = {"-N": "--nodes", "-n": "--ntasks"}


def known_batch(text: str) -> dict[str, Value]:
    """What Slurm's lines in a script make known."""
    words = [w for line in _BATCH.findall(text) for w in line.partition(" #")[0].split()]
    said = options(words)
    if (found := re.fullmatch(r"gpu(?::[\w.-]+)?:(\d{1,6})", said.get("gres", ""), re.ASCII)) is not None:
        said.setdefault("gpus-per-node", found[1])
    return {
        name: [said[key]]
        for key, names in _SLURM.items()
        if re.fullmatch(r"\d{1,7}", said.get(key, ""))
        for name in names
    }


def options(words: Iterable[str]) -> dict[str, str]:
    """`--name value`, `--name=value`, `-N 2` under their long names, dashes kept.

    >>> options("-N 2 --ntasks-per-node=8 --exclusive".split())
    {'nodes': '2', 'ntasks-per-node': '8', 'exclusive': ''}
    """
    listed = list(words)
    out = {}
    for word, after in zip(listed, [*listed, ""][1:], strict=True):
        if word[:2] in _SHORT and word[2:3].isdigit():  # -N2
            out[_SHORT[word[:2]].lstrip("-")] = word[2:]
            continue
        name, joined, value = word.partition("=")
        name = _SHORT.get(name, name)
        if name.startswith("--"):
            out[name.lstrip("-")] = value if joined else "" if after.startswith("-") else after
    return out


def is_idle_python(words: Value) -> bool:
    """`python -m pip`, `python -c`: programs that are none of a framework."""
    for k, word in enumerate(words[:-1]):
        if re.fullmatch(r"(.*/)?python[\d.]*", word) is not None:
            after = [w for w in words[k + 1 :] if w not in ("-u", "-W", "ignore")]
            return after[:1] == ["-c"] or after[:2] in (["-m", "pip"], ["-m", "venv"]) or after[:1] == ["--version"]
    return False
