"""What a run computed with: which values were made up, and in which precision.

A result that is "equal" says that ranks and one process agree on the values they were given.  Values that are made up
from a seed are not the model's own; where the model is a program that holds constants (rotary tables, masks), made-up
ones are not even values of the right kind.

    constants     inputs that an importer named `constant.*` because the program states their contents, where neither
                  the graph nor the plan holds them
    precision     blocks are computed in the real types of the inputs, and bfloat16 and float16 tensors that the program
                  makes are float32; or every tensor is stored in its own type, and what has 16 bits computed in float32
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...models.program.graph import STATED, Graph, Role
from ..kernels import Array, execution_dtype


@dataclass(frozen=True)
class MadeUp:
    """Values from the seed: how many inputs and parameters, and the constants of the program among them."""

    seed: int
    inputs: int
    parameters: int
    constants: tuple[str, ...]

    def lines(self) -> list[str]:
        """In words."""
        out = [
            (
                f"values made up from seed {self.seed}: {self.inputs} inputs, {self.parameters} parameters (--inputs "
                f"gives your own)"
            )
        ]
        if self.constants:
            shown = ", ".join(self.constants[:5]) + (", .." if len(self.constants) > 5 else "")
            out.append(f"constants made up: {len(self.constants)} names, whose values the plan does not hold: {shown}")
        return out


def made_up(graph: Graph, seed: int) -> MadeUp:
    """What `random_inputs` makes."""
    given = [t for t in graph.tensors if t.role is not Role.VALUE]
    given = [t for t in given if t.contents is None or t.contents.values is None]
    constants = tuple(t.name for t in given if t.name.startswith(STATED))
    inputs = sum(t.role is Role.INPUT and t.name not in constants for t in given)
    return MadeUp(seed, inputs, len(given) - inputs - len(constants), constants)


@dataclass(frozen=True)
class Precision:
    """Real element types: those computed in, those that the model states."""

    computed: tuple[str, ...]
    model: tuple[str, ...]

    def lines(self) -> list[str]:
        """In words; nothing where the run computes in the model's own types."""
        if set(self.model) <= set(self.computed):
            return []
        return [f"computed in {', '.join(self.computed) or 'integers'}; the model states {', '.join(self.model)}"]


def of_run(graph: Graph, arrays: Mapping[str, Array], stored: bool = False) -> Precision:
    """The types of the inputs and of casts; a cast to a half type is computed as `execution_dtype` says.  `stored`:
    those of the graph.
    """
    if stored:
        types = _ordered({t.dtype for t in graph.tensors if _real(t.dtype)})
        return Precision(types, types)
    found = {a.dtype.name for a in arrays.values() if a.dtype.kind == "f"}
    found |= {
        execution_dtype(t)
        for op in graph.operators
        if op.function == "cast" and _real(t := str(op.attribute("dtype", "")))
    }
    return Precision(_ordered(found), _ordered({t.dtype for t in graph.tensors if _real(t.dtype)}))


def rounds(graph: Graph) -> bool:
    """Whether weights are cast to 16 bits, as `--precision` does: such a graph says where numbers are rounded."""
    return any(
        op.function == "cast"
        and graph.tensor(op.output.tensor).dtype in ("bfloat16", "float16")
        and graph.tensor(op.inputs[0].tensor).role is Role.PARAMETER
        for op in graph.operators
    )


def _real(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _ordered(types: set[str]) -> tuple[str, ...]:
    """Widest first."""
    return tuple(sorted(types, key=lambda name: (-np.dtype(execution_dtype(name)).itemsize, name)))
