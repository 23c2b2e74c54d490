"""Three optimizer steps of small members of every family, in this project and in PyTorch: the numbers side by side.

    python tests/benchmarks/three_steps.py [--only GLOB ..] [--again] [--failed] [--seconds 240] [--results FILE.json]

The models are those of `tests/torch_models/families.py`.  Each gets the mean squared error of its first output against a
fixed target, and runs in a process of its own, three ways:

    float64     AdamW, three steps.  The largest difference of the loss and of every weight, relative to the largest element.
                What the model's own code calls float32 (statistics of a norm, rotary angles) is float64 in both, so
                that 1e-9 means something for all of them
    bfloat16    SGD, three steps of the module in bfloat16 on weights kept in float32 (`bf16-master`).  What both make of the
                weights is compared with PyTorch's three steps in float64: how far from it PyTorch is, how far this project,
                and how far they are from each other, as norms over all weights relative to what float64 changes

Results are kept in a JSON file after each model, so that an interrupted run goes on where it stopped; they are in the page
that `architectures.py --page` writes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "published"), str(HERE.parent), str(HERE.parent.parent)]

from architectures_page import agrees

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.training import build_step
from tests.torch_models.families import FAMILIES, PLAIN, First

RESULTS: Final = HERE / "results" / "three_steps.json"
STEPS: Final = 3
ADAMW, SGD = "adamw:rate=1e-3", "sgd:rate=0.05"
Arrays = dict[str, np.ndarray]
Made = tuple[nn.Module, dict[str, Tensor]]
LIBRARIES: Final = ("transformers.models", "transformers.modeling", "transformers.activations", "diffusers", "timm")
"""Modules whose float32 is taken for float64: what writes models, not what builds tensors."""


@dataclass(frozen=True)
class Result:
    """`double`: largest relative error of losses and weights in float64; `single`: whether the model computes a part in
    float32 there (statistics of a norm, rotary angles); `torch_half`, `own_half`: distance of the
    changes in bfloat16 from those in float64, `apart`: from each other; None where that was not reached; `reason`: what
    went wrong.
    """

    double: float | None = None
    single: bool = False
    torch_half: float | None = None
    own_half: float | None = None
    apart: float | None = None
    seconds: float = 0.0
    reason: str = ""
    reason_half: str = ""


class Compared(nn.Module):  # type: ignore[misc]
    """The mean squared error of a module's output against a target."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, target: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        difference = self.module(**inputs) - target
        return (difference * difference).mean()


class Widened:
    """PyTorch as a model sees it, but that float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


@contextmanager
def nothing_single() -> Iterator[None]:
    """Within, models compute in float64 what they name float32, and numbers of no stated type are float64."""
    libraries = [m for n, m in list(sys.modules.items()) if n.startswith(LIBRARIES)]
    replaced = [(m, vars(m)["torch"]) for m in libraries if vars(m).get("torch") is torch]
    narrow = Tensor.float
    for m, _ in replaced:
        m.torch = Widened()
    Tensor.float = Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        Tensor.float = narrow
        for m, before in replaced:
            m.torch = before


def members() -> Iterator[tuple[str, Callable[[], Made]]]:
    """`FAMILY/NAME` and what makes the module and its example inputs."""
    for family, held in FAMILIES.items():
        for name, make in held.items():
            yield f"{family}/{name}", make
    import plain_modules

    for family, names in PLAIN.items():
        for name in names:

            def make(name: str = name) -> Made:
                module, inputs = getattr(plain_modules, name)()
                return First(module), inputs

            yield f"{family}/{name}", make


def case(make: Callable[[], Made], half: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    """The module with its error, weights drawn, in float32, and its inputs drawn in the same type."""
    torch.manual_seed(3)
    module, inputs = make()
    draw = torch.Generator().manual_seed(1)
    for p in module.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=draw)

    def fresh(t: Tensor) -> Tensor:
        if t.is_floating_point():
            x = torch.randn(t.shape, generator=draw)
            return x.to(torch.bfloat16).float() if half else x
        return torch.randint(0, 6, t.shape, generator=draw, dtype=t.dtype)

    inputs = {k: fresh(v) for k, v in inputs.items()}
    if "adjacency" in inputs:  # rows that sum to one, as graph convolutions have them
        inputs["adjacency"] = inputs["adjacency"].softmax(-1)
    if "edges" in inputs:  # between any two nodes
        inputs["edges"] = torch.randint(0, len(inputs["x"]), inputs["edges"].shape, generator=draw)
    with torch.no_grad():
        out = module(**inputs)
    return Compared(module), {"target": fresh(out.float()), **inputs}


def typed(held: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Real tensors in another type."""
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in held.items()}


def loss_of(module: nn.Module, given: Mapping[str, Tensor]) -> Tensor:
    """Of the module on its inputs."""
    return module(given["target"], {k: v for k, v in given.items() if k != "target"})


def step_of(
    module: nn.Module, given: Mapping[str, Tensor], optimizer: str, precision: str | None
) -> tuple[Graph, bool]:
    """The imported training step, and whether PyTorch computes a part of it in float32."""
    inputs = {k: torch.zeros_like(v) for k, v in given.items() if k != "target"}

    def factory() -> tuple[nn.Module, tuple[object, ...]]:
        return deepcopy(module), (torch.zeros_like(given["target"]), inputs)

    program = build(factory, "model")
    seen = (getattr(n.meta.get("val"), "dtype", None) for n in program.exported.graph.nodes)
    single = torch.float32 in seen
    found = convert(program)
    return build_step(with_constants(found.graph, found.stated), optimizer, precision=precision).graph, single


def values(graph: Graph, module: nn.Module, given: Mapping[str, Tensor], dtype: type) -> Arrays:
    """Every input and parameter of the graph; what an optimizer remembers begins as zero."""
    held = {k: v.detach() for k, v in module.state_dict().items()}
    held |= {f"inputs_{k}": v for k, v in given.items()} | dict(given)
    out: Arrays = {}
    for t in graph.tensors:
        if t.role is Role.VALUE:
            continue
        if t.contents is not None and t.contents.values is not None:
            v = np.asarray(t.contents.values)
        elif t.name in held:
            h = held[t.name]
            v = (h.to(torch.float64) if h.is_floating_point() else h).numpy()
        else:
            v = np.zeros(t.shape)
        out[t.name] = (v.astype(dtype) if v.dtype.kind == "f" else v).reshape(t.shape)
    return out


def numbered(graph: Graph, step: int) -> Graph:
    """The step of that number."""
    ops = [
        replace(op, attributes=tuple((k, step if k == "step" else v) for k, v in op.attributes))
        if op.function in ("adam_update", "adamw_update")
        else op
        for op in graph.operators
    ]
    return replace(graph, operators=tuple(ops))


def error(ours: np.ndarray, theirs: Tensor) -> float:
    """Largest difference, relative to the largest element or one."""
    wanted = theirs.detach().double().numpy()
    apart = float(np.max(np.abs(ours.reshape(wanted.shape).astype(float) - wanted), initial=0.0))
    return apart / max(1.0, float(np.max(np.abs(wanted), initial=0.0)))


def double_steps(make: Callable[[], Made]) -> tuple[float, bool]:
    """The largest error of three steps of AdamW in float64, and whether a part of the model is in float32."""
    module, given = case(make, False)
    module, given = module.double(), typed(given, torch.float64)
    with nothing_single():
        return _double_steps(module, given)


def _double_steps(module: nn.Module, given: Mapping[str, Tensor]) -> tuple[float, bool]:
    graph, single = step_of(module, given, ADAMW, None)
    feed = values(graph, module, given, np.float64)
    weights = dict(module.named_parameters())
    optimizer, worst = torch.optim.AdamW(weights.values(), lr=1e-3), 0.0
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = loss_of(module, given)
        loss.backward()
        optimizer.step()
        got = run_graph(numbered(graph, step), feed)
        feed.update({old: got[new] for old, new in graph.state})
        worst = max(worst, error(got[graph.outputs[0]], loss))
        for w, p in weights.items():
            if w in feed:
                worst = max(worst, error(feed[w], p))
    return worst, single


def half_steps(make: Callable[[], Made]) -> tuple[float, float, float]:
    """Distances of the changes of three steps: PyTorch's bfloat16 from float64, ours from float64, from each other."""
    module, given = case(make, True)
    exact, single = deepcopy(module).double(), deepcopy(module)
    narrow = deepcopy(module).to(torch.bfloat16)
    start = {k: p.detach().double().clone() for k, p in module.named_parameters()}
    rate = 0.05
    graph, _ = step_of(narrow, typed(given, torch.bfloat16), SGD, "bf16-master")
    feed = values(graph, module, given, np.float32)
    for k, b in narrow.named_buffers():
        if k in feed and b.is_floating_point():
            feed[k] = b.detach().float().numpy().reshape(feed[k].shape)
    wide, half = typed(given, torch.float64), typed(given, torch.bfloat16)
    for _ in range(STEPS):
        for m, held in ((exact, wide), (narrow, half)):
            m.zero_grad()
            loss_of(m, held).backward()
        with torch.no_grad():
            for p in exact.parameters():
                if p.grad is not None:
                    p -= rate * p.grad
            for p, q in zip(single.parameters(), narrow.parameters(), strict=True):
                if q.grad is not None:
                    p -= rate * q.grad.float()
                q.copy_(p.to(torch.bfloat16))
        got = run_graph(graph, feed, stored=True)
        feed.update({old: got[new] for old, new in graph.state})
    squares = np.zeros(4)
    exactly, theirs = dict(exact.named_parameters()), dict(single.named_parameters())
    for k, before in start.items():
        if k not in feed:
            continue
        e, t = (exactly[k].detach() - before).numpy(), (theirs[k].detach().double() - before).numpy()
        o = feed[k].reshape(e.shape).astype(float) - before.numpy()
        squares += [np.sum((t - e) ** 2), np.sum((o - e) ** 2), np.sum((o - t) ** 2), np.sum(e**2)]
    lengths = np.sqrt(squares)
    torch_half, own_half, apart = (float(x / max(lengths[3], 1e-300)) for x in lengths[:3])
    return torch_half, own_half, apart


def measured(make: Callable[[], Made]) -> Result:
    """All of one model."""
    begun, found = time.process_time(), {}
    try:
        found["double"], found["single"] = double_steps(make)
    except Exception as e:  # noqa: BLE001  # written down
        found["reason"] = _told(e)
    try:
        found["torch_half"], found["own_half"], found["apart"] = half_steps(make)
    except Exception as e:  # noqa: BLE001  # written down
        found["reason_half"] = _told(e)
    return Result(**found, seconds=round(time.process_time() - begun, 1))


def _told(e: Exception) -> str:
    where = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {str(e)[:400]} ({Path(where.filename).name}:{where.lineno})"


def apart(make: Callable[[], Made], seconds: float) -> Result:
    """`measured` in a process of its own, ended after so many seconds of processor time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.signal(signal.SIGPROF, lambda *_: os._exit(9))
        with os.fdopen(writing, "w") as out:
            json.dump(asdict(measured(make)), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as back:
        text = back.read()
    _, status = os.waitpid(child, 0)
    return Result(**json.loads(text)) if status == 0 else Result(reason=f"ended with {status}", seconds=seconds)


def main() -> None:
    """Run what is asked for and has no result yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["*"])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--failed", action="store_true")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(given.results.read_text()) if given.results.exists() else {}
    for name, make in members():
        if not any(fnmatch(name, g) or fnmatch(name.partition("/")[2], g) for g in given.only):
            continue
        if name in known and not given.again and not (given.failed and not all(agrees(known[name]))):
            continue
        r = asdict(apart(make, given.seconds))
        known = {**(json.loads(given.results.read_text()) if given.results.exists() else {}), name: r}
        given.results.parent.mkdir(exist_ok=True)
        given.results.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        told = " ".join(
            f"{k}={v:.2g}" if isinstance(v, float) else f"{k}={v}" for k, v in r.items() if v not in ("", None)
        )
        print(name, agrees(r), told, flush=True)


if __name__ == "__main__":
    main()
