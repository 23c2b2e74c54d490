"""What the comparison with the framework costs an import: processor seconds of ten models with it and without.

    python tests/benchmarks/import_comparison.py [--repeats 2] [--page]

Every import is the public command in a process of its own, `shardproof import MODEL [--train adam]` with and without
`--no-compare`; the least of the repeats counts.  `--page` writes the table, `results/import-comparison.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "import-comparison.md"
MOST = 1 / 3
"""Of the import without it."""


@dataclass(frozen=True)
class Model:
    """A model in words, what `import` is given, and whether its training step is imported."""

    words: str
    place: str
    trained: bool


TEN, JAX = HERE.parent / "torch_models" / "ten.py", HERE.parent / "jax_programs.py"
MODELS = (
    Model("BERT (PyTorch, Hugging Face)", f"{TEN}:bert", True),
    Model("GPT-2 (PyTorch, Hugging Face)", f"{TEN}:gpt2", True),
    Model("Llama (PyTorch, Hugging Face)", f"{TEN}:llama", True),
    Model("Mixtral (PyTorch, Hugging Face)", f"{TEN}:mixtral", False),
    Model("ViT (PyTorch, Hugging Face)", f"{TEN}:vit", True),
    Model("convolutions (PyTorch)", f"{TEN}:convolutions", True),
    Model("transformer layer (JAX)", f"{JAX}:transformer", True),
    Model("convolutions (JAX)", f"{JAX}:convolutions", True),
    Model("convolutions (ONNX)", "net.onnx", False),
    Model("attention (NumPy)", "layer.py:layer", False),
)
LAYER = """
import numpy as np
from shardproof.models.sources.numpy.program import program

@program(x=(8, 16, 32), wq=(32, 4, 8), wk=(32, 4, 8), wv=(32, 4, 8), wo=(4, 8, 32))
def layer(x, wq, wk, wv, wo):
    q, k, v = (np.einsum("bsm,mhd->bhsd", x, w) for w in (wq, wk, wv))
    scores = np.exp(np.einsum("bhsd,bhtd->bhst", q, k) / np.sqrt(8.0))
    return np.einsum("bhsd,hdm->bsm", np.einsum("bhst,bhtd->bhsd", scores / scores.sum(-1, keepdims=True), v), wo)
"""


def write_models(folder: Path) -> None:
    """The ONNX file and the NumPy program."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    (folder / "layer.py").write_text(LAYER)
    rng, nodes, stored, at = np.random.default_rng(0), [], {}, "x"
    for k, (inside, out) in enumerate(((3, 16), (16, 16), (16, 32), (32, 32))):
        stored[f"w{k}"] = rng.standard_normal((out, inside, 3, 3)).astype(np.float32)
        stored |= {
            f"{n}{k}": np.abs(rng.standard_normal(out)).astype(np.float32) for n in ("scale", "b", "mean", "var")
        }
        nodes.append(helper.make_node("Conv", [at, f"w{k}"], [f"c{k}"], pads=[1, 1, 1, 1], strides=[1 + k % 2] * 2))
        nodes.append(helper.make_node("BatchNormalization", [f"c{k}", *(f"{n}{k}" for n in ("scale", "b", "mean", "var"))], [f"n{k}"]))  # fmt: skip
        nodes.append(helper.make_node("Relu", [f"n{k}"], [f"r{k}"]))
        at = f"r{k}"
    stored["head"] = rng.standard_normal((32, 10)).astype(np.float32)
    nodes += [helper.make_node("GlobalAveragePool", [at], ["p"]), helper.make_node("Flatten", ["p"], ["f"])]
    nodes += [helper.make_node("Gemm", ["f", "head"], ["z"]), helper.make_node("Softmax", ["z"], ["y"], axis=-1)]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 32, 32])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 10])
    weights = [numpy_helper.from_array(v, n) for n, v in stored.items()]
    graph = helper.make_graph(nodes, "net", [given], [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(folder / "net.onnx"))


def seconds_of(model: Model, folder: Path, compared: bool, repeats: int) -> tuple[float, str]:
    """The least processor seconds of an import, and what it says was compared.  RuntimeError where it is refused."""
    words = [
        sys.executable,
        "-m",
        "shardproof",
        "import",
        model.place,
        "--json",
        "-o",
        str(folder / "g.json"),
        "--force",
    ]
    words += ["--train", "adam"] * model.trained + ["--no-compare"] * (not compared)
    least, told = float("inf"), ""
    for _ in range(repeats):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
            assert process.stdout is not None
            out = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{model.words}: exit {process.returncode}")
        found = json.loads(out)["compared"]
        told = f"{found['samples']}, gradients {found['gradients']}{'; ' * bool(found['left_out'])}{found['left_out'] or ''}"
        least = min(least, used.ru_utime + used.ru_stime)
    return least, told


def main() -> int:
    """Print the table; 1 where the comparison takes more than a third."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    lines = ["| model | imported | without, s | with, s | more | sets of numbers |", "|---|---|--:|--:|--:|---|"]
    most = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        for model in MODELS:
            plain, _ = seconds_of(model, folder, False, asked.repeats)
            whole, told = seconds_of(model, folder, True, asked.repeats)
            most = max(most, whole / plain - 1)
            step = "training step" if model.trained else "forward"
            lines.append(f"| {model.words} | {step} | {plain:.1f} | {whole:.1f} | {whole / plain - 1:.0%} | {told} |")
            print(lines[-1], flush=True)
    print(f"at most {most:.0%} (a third is the bar)")
    if asked.page:
        head = (__doc__ or "").split("\n\n")
        text = [
            f"# {head[0]}",
            "",
            head[2].replace("\n", " ").strip(),
            "",
            *lines,
            "",
            f"At most {most:.0%}; the bar is a third.",
        ]
        text += [
            "",
            f"Of `python tests/benchmarks/import_comparison.py --repeats {asked.repeats} --page`, two cores, beside other work.",
        ]
        PAGE.write_text("\n".join(text) + "\n")
    return int(most > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
