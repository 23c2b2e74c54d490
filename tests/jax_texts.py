"""Writes the pairs of `jax_pairs.py` as texts, before and after XLA's partitioner, asks `equal` about them, and runs the
programs themselves: what JAX computes says which pairs are the same.

    python tests/jax_texts.py FOLDER [--every]      (JAX_PLATFORMS=cpu, as many host devices as ranks)

Prints JSON: rows of [name, form, whether JAX computes the same, exit status of equal, its answer, that of check].
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax_pairs
import numpy as np

from shardproof.__main__ import run

FORMS = ("mlir", "before.hlo", "after.hlo")
SOME = ("perceptron_right", "perceptron_max", "data_right", "experts_right", "experts_turned", "norm_local")
DEGREES = {"perceptron": (2, 4), "attention": (2, 4), "data": (2, 4), "norm": (2, 4)}
"""Ranks; other families as `jax_pairs` says."""
NOT_ON = {("attention_fewer_heads", 4)}
"""Programs that have no such degree: of two heads on four ranks."""


def lowered(made: Any) -> Any:
    function, arguments = made
    return (function.lower if hasattr(function, "lower") else jax.jit(function, keep_unused=True).lower)(*arguments)


def write(name: str, made: Any) -> list[np.ndarray]:
    """Texts of a program; what it computes."""
    found = lowered(made)
    compiled = found.compile()
    texts = found.as_text(), found.as_text(dialect="hlo"), compiled.as_text()
    for form, text in zip(FORMS, texts, strict=True):
        Path(f"{name}.{form}").write_text(text, encoding="utf-8")
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(compiled(*made[1]))]


def told(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words])
    return code, out.getvalue(), err.getvalue()


def main(folder: str, every: bool) -> None:
    rows = []
    os.chdir(folder)
    for single, right, wrong, said in jax_pairs.FAMILIES:
        whole = write(single, getattr(jax_pairs, single)())
        for name in (*right, *wrong):
            for ranks in DEGREES.get(single, (said,)) if every else (said,):
                if (name, ranks) in NOT_ON or not (every or name in SOME):
                    continue
                make = getattr(jax_pairs, name)
                by_rank = len(inspect.signature(make).parameters) == 2
                try:
                    made = write(f"{name}_{ranks}", make(0, ranks) if by_rank else make(ranks))
                except ValueError:  # a mesh of other sizes
                    continue
                same = all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(whole, made, strict=True))
                for form in FORMS:
                    one = f"{single}.{form if every else 'mlir'}"
                    call = ["equal", one, f"{name}_{ranks}.{form}", "--json", "--force", "-o", "proof.spz"]
                    code, out, err = told(*call, *(["--ranks", str(ranks)] if form == "before.hlo" else []))
                    checked = told("check", "proof.spz")[0] if code == 0 else None
                    rows.append([f"{name} on {ranks}", form, same, code, out or err, checked])
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], "--every" in sys.argv[2:])
