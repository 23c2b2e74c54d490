"""Finds, for every module of a PyTorch program that has parameters, what it reads and leaves in a plan.

A plan speaks of tensors and operators, a PyTorch job of modules.  The importer names parameters by their fully
qualified names, so `blocks.0.f1.weight` ties the operators that read it to the module `blocks.0.f1`:

    enters    the first of them in the order of execution; its inputs that are no parameters are the module's
    leaves    the last of them; its result is the module's

Between modules (attention scores, residual sums) nothing is said: what these operators do follows from what they read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ...models.communication.choices import resting_places
from ...models.communication.shardings import PlanShardings
from ...models.layout.sharding import Sharding
from ...models.program.graph import Graph, Role
from ...models.program.operators import Operator
from ...models.sources.training.recompute import PREFIX

PART: Final = re.compile(r"@(\d{1,6})$")
"""How operators and tensors of a micro-batch end."""


@dataclass(frozen=True)
class TensorPlace:
    """A tensor in one place of a plan: its digits, how they are cut, and its element type.  `reader`: the operator that
    takes it so; None where it rests.
    """

    tensor: str
    reader: str | None
    digits: tuple[int, ...]
    sharding: Sharding
    dtype: str = ""


@dataclass(frozen=True)
class ModuleLayouts:
    """`reads`: the module's inputs that are no parameters, in the order of its first operator.  `parameters`: as its
    operators take them.  `product`: for a matrix product with a bias, the result before the bias as the addition takes
    it.  `result`: as it rests.  None: not said by a sharding.
    """

    name: str
    reads: tuple[TensorPlace | None, ...]
    parameters: tuple[tuple[str, TensorPlace], ...]
    product: TensorPlace | None
    result: TensorPlace | None


def module_layouts(graph: Graph, found: PlanShardings) -> Iterator[ModuleLayouts]:
    """Modules in the order in which they are first entered; of a step in micro-batches, those of the first."""
    own: dict[str, list[Operator]] = {}
    places, readers, weights = resting_places(graph), graph.readers(), weights_read(graph)
    for op in forward_operators(graph):
        part = PART.search(op.name)
        if (part is not None and int(part[1])) or op.output.tensor in weights:
            continue
        modules = {weights[a.tensor].rpartition(".")[0] for a in op.inputs if a.tensor in weights}
        for name in sorted(modules - {""}):
            own.setdefault(name, []).append(op)
    for name, operators in own.items():
        first, last = operators[0], operators[-1]
        reads = tuple(
            _held(graph, a.tensor, first.name, found.reads.get((first.name, i)))
            for i, a in enumerate(first.inputs)
            if a.tensor not in weights
        )
        parameters = tuple(
            (weights[a.tensor].rpartition(".")[2], held)
            for op in operators
            for i, a in enumerate(op.inputs)
            if a.tensor in weights
            and weights[a.tensor].rpartition(".")[0] == name
            and (held := _held(graph, a.tensor, op.name, found.reads.get((op.name, i)))) is not None
        )
        product = None
        if len(operators) == 2 and first.function == "product" and last.function == "add":
            at = next((i for i, a in enumerate(last.inputs) if a.tensor == first.output.tensor), None)
            product = (
                None if at is None else _held(graph, first.output.tensor, last.name, found.reads.get((last.name, at)))
            )
        out = last.output.tensor
        alone = None if out in places or not readers[out] else graph.operators[readers[out][0][0]].name
        result = _held(graph, out, alone, found.rests.get(out))
        yield ModuleLayouts(name, reads, tuple(dict(parameters).items()), product, result)


def forward_operators(graph: Graph) -> Iterator[Operator]:
    """Operators that no gradient comes before: those of the program itself, in order, each once."""
    later = {value for _, value in graph.state}
    for op in graph.operators:
        if any(a.tensor in later for a in op.inputs):
            later.add(op.output.tensor)
        if op.output.tensor.startswith("grad:"):  # how training steps name gradients (`sources.training.backward`)
            later.add(op.output.tensor)
        if op.output.tensor not in later and not op.name.startswith(PREFIX):
            yield op


def micro_batches(graph: Graph) -> int:
    """Parts of the batch that a step is computed in, one after another (`sources.training.accumulation`).

    >>> from ...models.sources.training import build_step
    >>> from ...models.sources.training.accumulation import accumulate
    >>> from ...models.sources.zoo import build
    >>> micro_batches(accumulate(build_step(build("mlp-unity", batch=32), "sgd"), 4).graph)
    4
    """
    return 1 + max((int(m[1]) for op in graph.operators if (m := PART.search(op.name))), default=0)


CAST: Final = re.compile(r"(?P<name>.+)\.(?:bf16|fp16)'*")
"""How the name of a tensor in a half type goes on behind its own (`sources.precision.rewriting`)."""


def weights_read(graph: Graph) -> dict[str, str]:
    """Tensor -> the parameter that it is, itself or cast to a half type.

    >>> from ...models.sources.precision import mixed_precision, parse_precision
    >>> from ...models.sources.zoo import build
    >>> weights_read(mixed_precision(build("mlp-unity"), parse_precision("bf16-master")))["fc1.weight.bf16"]
    'fc1.weight'
    """
    kept = _beside(graph.state)
    out = {t.name: t.name for t in graph.tensors if t.role is Role.PARAMETER and t.name not in kept}
    for op in graph.operators:
        found = CAST.fullmatch(op.output.tensor) if op.function == "cast" else None
        if found is not None and op.inputs[0].tensor == found["name"] and found["name"] in out:
            out[op.output.tensor] = found["name"]
    return out


def is_weight(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is a parameter of the program, and not one that an optimizer keeps beside it."""
    return graph.tensor(tensor).role is Role.PARAMETER and tensor not in _beside(graph.state)


def moments(graph: Graph) -> Mapping[str, Mapping[str, str]]:
    """Trained parameter -> what the optimizer keeps for it: ending of its name -> its name."""
    return _moments(graph.state)


@lru_cache(maxsize=8)
def _beside(state: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """All that an optimizer keeps: asked of every weight of a model, as `_moments` is."""
    return frozenset(name for names in _moments(state).values() for name in names.values())


@lru_cache(maxsize=8)
def _moments(state: tuple[tuple[str, str], ...]) -> dict[str, dict[str, str]]:
    stored = dict(state)
    out: dict[str, dict[str, str]] = {}
    for name in stored:
        owner, _, ending = name.rpartition(".")
        if owner in stored:
            out.setdefault(owner, {})[ending] = name
    return out


def _held(graph: Graph, tensor: str, reader: str | None, sharding: Sharding | None) -> TensorPlace | None:
    if sharding is None:
        return None
    t = graph.tensor(tensor)
    return TensorPlace(tensor, reader, t.shape, sharding, t.dtype)
