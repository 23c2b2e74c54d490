"""Times on the GPU at hand, with PyTorch: what waits for memory, products, attention, convolutions, whole steps.

    python tests/benchmarks/gpu_times.py OUT [--families NAMES] [--seconds S] [--drawn SEED]

Needs torch with CUDA and nothing of ours but `gpu/models.py` beside it, so that it runs where only these files are.  Writes OUT/FAMILY.csv: one row a case with the
median of several batches of launches in microseconds, and OUT/machine.json.  Operands rotate through more memory than the second-level cache holds, as
they do in a training step.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import torch
from gpu.models import STEPS, language
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Row = dict[str, object]
CACHE = 256 << 20
"""Bytes that operands rotate through: five times the cache of an H100."""

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def timed(work: Callable[[int], object], batches: int = 5, least_s: float = 4e-3) -> float:
    """Microseconds of one call on the device; `work` is given the number of the call."""
    for i in range(3):
        work(i)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work(0)
    end.record()
    end.synchronize()
    calls = max(3, min(200, int(least_s * 1e3 / max(begin.elapsed_time(end), 1e-3))))
    held: list[object] = [None] * 16  # results in memory of their own, as those of a step are
    graph = None
    try:  # a captured graph launches without waiting for Python
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for i in range(calls):
                held[i % len(held)] = work(i)
    except (RuntimeError, torch.AcceleratorError):
        graph = None
        torch.cuda.synchronize()
    found = []
    for _ in range(batches):
        begin.record()
        if graph is not None:
            graph.replay()
        else:
            for i in range(calls):
                work(i)
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / calls)
    del graph
    return statistics.median(found)


def copies(shape: tuple[int, ...], dtype: torch.dtype, most: int = 64) -> list[torch.Tensor]:
    """Enough equal tensors to leave the cache between two uses of one."""
    bytes_ = max(1, torch.empty((), dtype=dtype).element_size())
    for n in shape:
        bytes_ *= n
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(max(1, min(most, CACHE // bytes_)))]


def memory() -> Iterator[Row]:
    """What waits for memory: bytes are those that must move."""
    for dtype in ("bfloat16", "float32"):
        width = TYPES[dtype].itemsize
        for rows in (256, 1024, 4096, 16384, 65536):
            for columns in (1024, 4096):
                if rows * columns * width > 600 << 20:
                    continue
                x, y = copies((rows, columns), TYPES[dtype], 16), copies((rows, columns), TYPES[dtype], 16)
                n, bias = len(x), torch.randn(columns, device="cuda").to(TYPES[dtype])
                whole = rows * columns * width
                cases: dict[str, tuple[Callable[[int], object], int]] = {
                    "copy": (lambda i: y[i % n].copy_(x[i % n]), 2 * whole),
                    "add": (lambda i: torch.add(x[i % n], y[i % n]), 3 * whole),
                    "bias": (lambda i: x[i % n] + bias, 2 * whole),
                    "gelu": (lambda i: F.gelu(x[i % n]), 2 * whole),
                    "silu": (lambda i: F.silu(x[i % n]), 2 * whole),
                    "layer_norm": (lambda i: F.layer_norm(x[i % n], (columns,), bias, bias), 2 * whole),
                    "rms_norm": (lambda i: F.rms_norm(x[i % n], (columns,), bias), 2 * whole),
                    "softmax": (lambda i: torch.softmax(x[i % n], -1), 2 * whole),
                    "sum_rows": (lambda i: x[i % n].sum(0), whole),
                    "sum_columns": (lambda i: x[i % n].sum(1), whole),
                    "transpose": (lambda i: x[i % n].t().contiguous(), 2 * whole),
                }
                for name, (work, moved) in cases.items():
                    yield {
                        "operation": name, "dtype": dtype, "rows": rows, "columns": columns, "bytes": moved, "us": timed(work)
                    }  # fmt: skip
    for elements in (1 << 16, 1 << 20, 1 << 24, 1 << 27):
        p = [torch.randn(elements, device="cuda", requires_grad=True)]
        p[0].grad = torch.randn(elements, device="cuda")
        step = torch.optim.Adam(p, fused=True, capturable=True)
        yield {
            "operation": "adam", "dtype": "float32", "rows": 1, "columns": elements, "bytes": 28 * elements,
            "us": timed(lambda i: step.step()),
        }  # fmt: skip
    table = torch.randn(32768, 4096, device="cuda", dtype=torch.bfloat16)
    for rows in (256, 2048, 16384, 65536):
        ids = torch.randint(0, 32768, (rows,), device="cuda")
        yield {
            "operation": "embedding", "dtype": "bfloat16", "rows": rows, "columns": 4096, "bytes": rows * (2 * 8192 + 8),
            "us": timed(lambda i: F.embedding(ids, table)),
        }  # fmt: skip


PRODUCTS = [
    (m, n, k)
    for m in (256, 1000, 2048, 4096, 8192, 16384)
    for n, k in ((1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336))
] + [(4096, 32000, 4096), (2048, 50304, 1600), (512, 30522, 1024), (4096, 8192, 28672), (8192, 28672, 8192)]


def drawn_products(seed: int, cases: int = 40) -> list[tuple[int, int, int]]:
    """Shapes that nothing was fitted on; multiples of 8, as kernels for tensor cores want them."""
    random = Random(seed)
    return [
        (8 * random.randrange(16, 2049), *(64 * round(2 ** random.uniform(2, 8)) for _ in range(2)))
        for _ in range(cases)
    ]


def products(seed: int | None = None) -> Iterator[Row]:
    """(b) (m, k) x (k, n); `form` says which operand is stored turned, as backward passes have them."""
    shapes = PRODUCTS if seed is None else drawn_products(seed)
    for m, n, k in shapes:
        for form in ("nn", "nt", "tn"):
            if form != "nn" and (seed is not None or m not in (2048, 8192, 4096)):
                continue
            a = copies((k, m) if form == "tn" else (m, k), torch.bfloat16, 8)
            b = copies((n, k) if form == "nt" else (k, n), torch.bfloat16, 8)
            work = {
                "nn": lambda i, a=a, b=b: a[i % len(a)] @ b[i % len(b)],
                "nt": lambda i, a=a, b=b: a[i % len(a)] @ b[i % len(b)].t(),
                "tn": lambda i, a=a, b=b: a[i % len(a)].t() @ b[i % len(b)],
            }[form]
            yield {"dtype": "bfloat16", "form": form, "b": 1, "m": m, "n": n, "k": k, "us": timed(work, 3, 3e-3)}
    if seed is not None:
        return
    for dtype, exact in (("float16", "float16"), ("float32", "float32"), ("tf32", "float32"), ("float64", "float64")):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        for m, n, k in ((1024, 1024, 1024), (4096, 4096, 4096), (2048, 8192, 2048), (8192, 4096, 1024)):
            kind = torch.float64 if exact == "float64" else TYPES[exact]
            a, b = copies((m, k), kind, 4), copies((k, n), kind, 4)
            seconds = timed(lambda i, a=a, b=b: a[i % len(a)] @ b[i % len(b)], 3, 3e-3)
            yield {"dtype": dtype, "form": "nn", "b": 1, "m": m, "n": n, "k": k, "us": seconds}
    torch.backends.cuda.matmul.allow_tf32 = False
    one = torch.tensor(1.0, device="cuda")
    for m in (256, 1024, 4096, 16384):
        for n, k in ((1024, 1024), (4096, 4096), (14336, 4096), (4096, 14336)):
            a = [t.to(torch.float8_e4m3fn) for t in copies((m, k), torch.bfloat16, 4)]
            b = [t.to(torch.float8_e4m3fn) for t in copies((n, k), torch.bfloat16, 4)]
            seconds = timed(
                lambda i, a=a, b=b: torch._scaled_mm(
                    a[i % len(a)], b[i % len(b)].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
                ),
                3,
                3e-3,
            )
            yield {"dtype": "fp8", "form": "nt", "b": 1, "m": m, "n": n, "k": k, "us": seconds}
    for batch, m, n, k in (
        (16, 512, 512, 64), (64, 512, 512, 64), (128, 512, 64, 512), (256, 512, 512, 64), (256, 128, 128, 64),
        (32, 2048, 2048, 128), (32, 2048, 128, 2048), (8, 4096, 4096, 128), (8, 1024, 4096, 1024), (8, 2048, 1408, 2048),
    ):  # fmt: skip
        a, b = copies((batch, m, k), torch.bfloat16, 8), copies((batch, k, n), torch.bfloat16, 8)
        seconds = timed(lambda i, a=a, b=b: torch.bmm(a[i % len(a)], b[i % len(b)]), 3, 3e-3)
        yield {"dtype": "bfloat16", "form": "nn", "b": batch, "m": m, "n": n, "k": k, "us": seconds}


ATTENTION = (
    (16, 16, 16, 512, 64), (32, 16, 16, 512, 64), (64, 16, 16, 128, 64), (1, 12, 12, 1024, 64), (8, 12, 12, 1024, 64),
    (4, 16, 16, 2048, 64), (2, 16, 16, 4096, 64), (1, 32, 8, 2048, 128), (2, 32, 8, 2048, 128), (1, 32, 8, 4096, 128),
    (1, 32, 8, 8192, 128), (1, 32, 32, 4096, 128), (1, 8, 1, 8192, 128), (1, 4, 1, 8192, 128), (1, 8, 8, 16384, 128),
    (4, 8, 2, 4096, 128), (1, 64, 8, 4096, 128), (8, 16, 16, 197, 64), (64, 12, 12, 197, 64), (1, 1, 1, 8192, 128),
)  # fmt: skip
"""Batch, heads, heads of keys and values, positions, width of a head."""


def drawn_attention(seed: int, cases: int = 24) -> list[tuple[int, int, int, int, int]]:
    """Shapes that nothing was fitted on: positions of any length, 4 to 96 heads, groups of them."""
    random = Random(seed)
    found: list[tuple[int, int, int, int, int]] = []
    while len(found) < cases:
        positions = random.choice(
            (random.randrange(128, 1024), random.randrange(1024, 12289), 128 * random.randrange(2, 97))
        )
        shared, group, width = (
            random.choice((1, 2, 4, 8, 12, 16)),
            random.choice((1, 1, 2, 4, 8)),
            random.choice((64, 128)),
        )
        batch = random.choice((1, 2, 4, 8, 16))
        if 1 << 24 <= batch * shared * group * positions**2 <= 1 << 33 and shared * group <= 96:
            found.append((batch, shared * group, shared, positions, width))
    return found


def attention(seed: int | None = None) -> Iterator[Row]:
    """Scaled dot-product attention forward and backward, by kernel; `pairs` that a causal mask leaves are half."""
    for kernel in ("flash", "cudnn"):
        chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[kernel]
        for batch, heads, shared, sequence, width in ATTENTION if seed is None else drawn_attention(seed):
            for causal in (False, True):
                if causal and sequence == 197:
                    continue

                def make(n: int, batch: int = batch, sequence: int = sequence, width: int = width) -> torch.Tensor:
                    return torch.randn(batch, n, sequence, width, device="cuda", dtype=torch.bfloat16)

                q, k, v = make(heads).requires_grad_(), make(shared).requires_grad_(), make(shared).requires_grad_()
                try:
                    with sdpa_kernel(chosen):
                        call = lambda: F.scaled_dot_product_attention(
                            q, k, v, is_causal=causal, enable_gqa=heads != shared
                        )
                        with torch.no_grad():
                            forward = timed(lambda i: call(), 3, 3e-3)
                        out = call()
                        given = torch.randn_like(out)
                        backward = timed(
                            lambda i: torch.autograd.grad(out, (q, k, v), given, retain_graph=True), 3, 3e-3
                        )
                except RuntimeError as error:
                    print(f"{kernel} {batch} {heads} {sequence} {width}: {str(error)[:100]}", file=sys.stderr)
                    continue
                yield {
                    "kernel": kernel, "dtype": "bfloat16", "batch": batch, "heads": heads, "kv_heads": shared,
                    "sequence": sequence, "width": width, "causal": int(causal), "forward_us": forward, "backward_us": backward,
                }  # fmt: skip


def convolutions() -> Iterator[Row]:
    """Layers of ResNet-50 at 224 pixels: forward, gradient of the input, gradient of the weight; channels last."""
    for size, inputs, outputs, window, stride in (
        (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 128, 1, 1), (56, 128, 128, 3, 2),
        (28, 128, 128, 3, 1), (28, 128, 512, 1, 1), (28, 256, 256, 3, 2), (14, 256, 256, 3, 1), (14, 256, 1024, 1, 1),
        (14, 512, 512, 3, 2), (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1),
    ):  # fmt: skip
        for batch in (32, 256):
            x = torch.randn(batch, inputs, size, size, device="cuda", dtype=torch.bfloat16)
            x = x.to(memory_format=torch.channels_last).requires_grad_()
            w = torch.randn(outputs, inputs, window, window, device="cuda", dtype=torch.bfloat16)
            w = w.to(memory_format=torch.channels_last).requires_grad_()
            out = F.conv2d(x, w, stride=stride, padding=window // 2)
            given = torch.randn_like(out)
            with torch.no_grad():
                forward = timed(lambda i: F.conv2d(x, w, stride=stride, padding=window // 2), 3, 3e-3)
            times = [
                timed(lambda i, t=t: torch.autograd.grad(out, (t,), given, retain_graph=True), 3, 3e-3) for t in (x, w)
            ]
            yield {
                "dtype": "bfloat16", "batch": batch, "size": size, "inputs": inputs, "outputs": outputs, "window": window,
                "stride": stride, "forward_us": forward, "input_us": times[0], "weight_us": times[1],
            }  # fmt: skip


def steps() -> Iterator[Row]:
    """A training step in bfloat16 with fp32 Adam states in one process: eager and compiled; peaks of the allocator."""
    for name, (sizes, cases) in STEPS.items():
        for batch, positions in cases:
            for mode in ("eager", "compiled") if (batch, positions) == cases[0] else ("eager",):
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                torch.manual_seed(0)
                with torch.device("cuda"):
                    model = language(name).bfloat16()
                step = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
                if mode == "compiled":  # equal layers are compiled once
                    for layer in model.layers:
                        layer.compile()
                ids = torch.randint(0, sizes[5], (batch, positions), device="cuda")

                def once(model: nn.Module = model, ids: torch.Tensor = ids, step: torch.optim.Optimizer = step) -> None:
                    model(ids, ids).backward()
                    step.step()
                    step.zero_grad(set_to_none=True)

                begin = time.perf_counter()
                try:
                    for _ in range(3):
                        once()
                    torch.cuda.synchronize()
                except torch.OutOfMemoryError:
                    yield {
                        "model": name,
                        "batch": batch,
                        "sequence": positions,
                        "mode": mode,
                        "ms": "",
                        "peak_bytes": "",
                    }
                    continue
                started = time.perf_counter() - begin
                torch.cuda.reset_peak_memory_stats()
                found = []
                for _ in range(5):
                    begin = time.perf_counter()
                    once()
                    torch.cuda.synchronize()
                    found.append((time.perf_counter() - begin) * 1e3)
                yield {
                    "model": name, "batch": batch, "sequence": positions, "mode": mode, "ms": statistics.median(found),
                    "peak_bytes": torch.cuda.max_memory_allocated(), "first_s": started,
                }  # fmt: skip
                del model, step, once


FAMILIES: dict[str, Callable[[], Iterator[Row]]] = {
    "attention": attention,
    "memory": memory,
    "products": products,
    "steps": steps,
    "convolutions": convolutions,
}


def main(arguments: list[str]) -> int:
    """Measure the families asked for, a file each, until the seconds are over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=float, default=600.0, help="stop between two rows after this long")
    parser.add_argument(
        "--drawn", type=int, metavar="SEED", help="attention and products of drawn shapes, nothing else"
    )
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    card = torch.cuda.get_device_properties(0)
    machine = {
        "gpu": card.name, "memory": card.total_memory, "processors": card.multi_processor_count, "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    (asked.out / "machine.json").write_text(json.dumps(machine, indent=1) + "\n")
    begin = time.perf_counter()
    torch.cuda.set_stream(
        torch.cuda.Stream()
    )  # that of forward passes is that of backward passes; the default one captures nothing
    families = FAMILIES
    if asked.drawn is not None:
        families = {"attention": partial(attention, asked.drawn), "products": partial(products, asked.drawn)}
    for name in families if asked.drawn is not None else asked.families.split(","):
        with (asked.out / f"{name}.csv").open("w", newline="") as file:
            writer = None
            for row in families[name]():
                if writer is None:
                    writer = csv.DictWriter(file, list(row), extrasaction="ignore")
                    writer.writeheader()
                writer.writerow({k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()})
                file.flush()
                if time.perf_counter() - begin > asked.seconds:
                    print(f"{name}: out of time", file=sys.stderr)
                    break
            torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
