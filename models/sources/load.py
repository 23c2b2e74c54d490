"""The one way in for models: a zoo name, an ONNX file, a NumPy or PyTorch program in a Python file, a
saved PyTorch program, our JSON.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..files.input import regular
from ..program.contents import read_beside
from ..program.graph import Graph, GraphError
from ..program.operators import NodeKind
from ..text import InputError, did_you_mean
from .building.attention import with_fused_gradients
from .building.original import Original
from .patterns.recognise import recognise
from .zoo import PUBLISHED, ZOO, sizes_words
from .zoo import build as build_zoo
from .zoo import zoo_spec as zoo_name

PYTHON = re.compile(
    r"^(?P<file>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+):(?P<name>[A-Za-z_][A-Za-z_0-9.]*)(?::(?P<sizes>.+))?$"
)
"""FILE.py:NAME, or NAME of an importable module: package.module:NAME; behind it `:N=64,M=8`, sizes that have names."""


Attention = Literal["operator", "matrices", "fused"]
"""How attention is written: as one operator wherever it is recognised, with a gradient for each of q, k and v, or as
products and softmax of whole scores; fused: as one operator whose gradients are one operator, too."""


def load_model(
    spec: str,
    batch: int | None = None,
    tell: Callable[[str], None] | None = None,
    attention: Attention | None = None,
    expert_places: int | None = None,
    original: Callable[[Original], None] | None = None,
    trained: bool = False,
) -> Graph:
    """The graph behind `spec`; `tell` hears what a frontend did to the model.  `attention`: None leaves zoo, ONNX and
    JSON graphs as they are written, and imports PyTorch programs with the operator; where they are `trained` (a step
    is made of the graph, or may be) its gradients are fused wherever PyTorch has a kernel that does.
    `expert_places`: percent of the even share of places that experts of a PyTorch program get in every sentence
    (`building.slots`), 0: one per token.  `original` takes the program itself, to be compared with
    (`backends.execution.differential`).
    Raises `InputError` naming what can be given, or the error of the frontend.

    >>> load_model("mlp-unity").name
    'mlp-unity'
    >>> [op.function for op in load_model("attention", attention="operator").operators if op.kind.value == "attention"]
    ['attention']
    """
    return with_attention(_load(spec, batch, tell, attention, expert_places, original, trained), attention)


def with_attention(graph: Graph, attention: Attention | None) -> Graph:
    """A graph with its attention written as asked; None leaves it.  Raises `InputError` where its operators would have
    to become products again.
    """
    held = next((op.name for op in graph.operators if op.kind is NodeKind.ATTENTION), None)
    if attention == "matrices" and held is not None:
        raise InputError(
            f"{graph.name}: {held} is written as attention, one operator, and is not taken apart; "
            "make the graph from its source with attention as matrices"
        )
    if attention in ("operator", "fused"):
        graph = recognise(graph, attention=True).graph
    return with_fused_gradients(graph) if attention == "fused" else graph


def _load(
    spec: str,
    batch: int | None,
    tell: Callable[[str], None] | None,
    attention: Attention | None,
    expert_places: int | None,
    original: Callable[[Original], None] | None,
    trained: bool,
) -> Graph:
    if batch is not None and batch < 1:
        raise InputError(f"--batch {batch}: the batch must be at least 1")
    if "\0" in spec:
        raise InputError(f"model {spec[:200]!r} holds a zero byte, which no name can")
    named = PYTHON.match(spec)
    if expert_places is not None and named is None and not spec.endswith(".pt2"):
        raise InputError("--expert-places applies to PyTorch programs; the zoo's moe has an option capacity_percent")
    if (zoo := zoo_name(spec)) is not None:
        return _from_zoo(spec, *zoo, batch, tell)
    if named is not None:
        program = _Program(Path(named["file"]), named["name"], _sizes(spec, named["sizes"]))
        return _from_python(program, batch, tell, attention, expert_places, original, trained)
    path = Path(spec)
    if not _exists(path):
        raise InputError(
            f"model {spec[:200]!r} is neither a zoo name nor a file{did_you_mean(spec, [*ZOO, *PUBLISHED])}; zoo: "
            f"{', '.join(sorted(ZOO))}; of published sizes: {', '.join(sorted(PUBLISHED))}"
        )
    if path.suffix in (".onnx", ".pt2", ".json"):
        regular(path)
    if path.suffix == ".onnx":
        from .onnx.importer import load_onnx

        return load_onnx(path, batch, original)
    if path.suffix == ".pt2":
        from .torch.importer import load_torch

        return load_torch(spec, batch, tell, attention, expert_places, original, trained)
    if path.suffix == ".json":
        if batch is not None:
            raise InputError("--batch applies to zoo names and ONNX files; a JSON graph has its sizes written in")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{spec}: cannot be read: {error}") from None
        try:
            return read_beside(path, Graph.from_json(text))
        except GraphError as error:
            raise GraphError(f"{spec}, {error.place}", error.message, error.notation) from None
        except ValueError as error:
            raise InputError(str(error)) from None
    if path.suffix == ".spz":
        raise InputError(
            f"{spec}: is a result, not a model; 'shardproof check' says what it holds, 'shardproof run' executes a plan"
        )
    raise InputError(
        f"{spec}: unknown kind of model; give a zoo name, a .onnx or .pt2 file, FILE.py:NAME, or a .json graph "
        f"written by 'shardproof import'"
    )


def _from_zoo(
    spec: str,
    name: str,
    sizes: dict[str, int | str],
    batch: int | None,
    tell: Callable[[str], None] | None,
) -> Graph:
    """A zoo model with the sizes of its name; which ones were taken by default is told."""
    if batch is not None:
        if sizes.get("batch", batch) != batch:
            raise InputError(
                f"model {spec[:200]!r} says batch={sizes['batch']}, and --batch {batch}: give one of the two"
            )
        sizes = {**sizes, "batch": batch}
    own, others = sizes.get("batch"), {key: value for key, value in sizes.items() if key != "batch"}
    if isinstance(own, str):
        raise InputError(f"model {spec[:200]!r}: batch must be an integer of at least 1, got {own[:40]!r}")
    graph = build_zoo(name, own, **others)
    if tell is not None:
        tell(sizes_words(name, sizes))
    return graph


def _sizes(spec: str, text: str | None) -> dict[str, int]:
    """`N=64,M=8`.  Raises `InputError` for what is not written so.

    >>> _sizes("f.py:f:N=64", "N=64")
    {'N': 64}
    """
    sizes: dict[str, int] = {}
    for part in text.split(",") if text is not None else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value.isdecimal() and 0 < int(value) < 1 << 31) or key in sizes:
            raise InputError(
                f"model {spec[:200]!r}: {part[:100]!r} is not a size; write FILE.py:NAME:N=64,M=8, each name once, "
                f"numbers from 1 to {(1 << 31) - 1}; a range, N=64..4096, is for 'shardproof plan' on the command "
                "line, N=64..4096*2 for 'shardproof sweep'"
            )
        sizes[key] = int(value)
    return sizes


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


@dataclass(frozen=True)
class _Program:
    """FILE.py:NAME, with the numbers of sizes that have names."""

    path: Path
    name: str
    sizes: dict[str, int]


def _from_python(
    program: _Program,
    batch: int | None,
    tell: Callable[[str], None] | None,
    attention: Attention | None,
    expert_places: int | None,
    original: Callable[[Original], None] | None,
    trained: bool,
) -> Graph:
    """The graph behind `name` of a Python file: a NumPy program, or what makes a PyTorch module."""
    from .building.python_file import load_object
    from .jax.importer import is_jax, load_jax
    from .numpy.program import is_numpy_program
    from .numpy.trace import load_program

    path, name, sizes = program.path, program.name, program.sizes
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    try:
        found = load_object(path, name)
    finally:
        sys.path.pop(0)
    if is_numpy_program(found):
        if batch is not None:
            raise InputError("--batch applies to zoo names and ONNX files; a NumPy program has its shapes written in")
        return load_program(path, name, original, tell, sizes)
    if sizes:
        raise InputError(f'{path}:{name}: sizes that have names are of NumPy programs (float64["N", 8])')
    if is_jax(found):
        if expert_places is not None:
            raise InputError("--expert-places applies to PyTorch programs")
        return load_jax(path, name, found, batch, attention != "matrices", original)
    if "torch" not in sys.modules:
        raise InputError(
            f"{path}:{name} is not a NumPy program: decorate it with @shardproof.program(x=(64, 784), ..); "
            "a PyTorch model is a function that returns (module, example inputs), a JAX program one that returns "
            "(function, example arguments ..)"
        )
    from .torch.importer import load_torch

    return load_torch(f"{path}:{name}", batch, tell, attention, expert_places, original, trained)
