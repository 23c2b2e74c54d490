"""Refuses steps that no run has, before anything is said of them: other operands or words than the operator has, words
of another kind, dimensions that its operands lack, element types and shapes that it does not make.

What a step says and nobody reads would be a claim about another program: add(x, y, alpha 2) is no x + y.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from ...models.equality.program import RankProgram, Step, Word
from .index import Undecided
from .meaning import COMPARED, OPAQUE, TWO


class Malformed(ValueError):
    """A program that no run can have: not undecided, but no program."""


def _whole(value: Word, rank: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wholes(value: Word, rank: int) -> bool:
    return isinstance(value, tuple) and min(value, default=0) >= 0


KINDS: Final[Mapping[str, Callable[[Word, int], bool]]] = {
    "truth": lambda value, rank: isinstance(value, bool),
    "text": lambda value, rank: isinstance(value, str),
    "number": lambda value, rank: isinstance(value, int | float),
    "whole": _whole,
    "count": lambda value, rank: _whole(value, rank) and isinstance(value, int) and value >= 0,
    "sizes": _wholes,
    "axis": lambda value, rank: _whole(value, rank) and isinstance(value, int) and 0 <= value < max(1, rank),
    "axes": lambda value, rank: (
        isinstance(value, tuple) and len(set(value)) == len(value) and all(0 <= d < rank for d in value)
    ),
}
"""What a word is, beside how many dimensions the first operand has."""


@dataclass(frozen=True)
class Signature:
    """`least` and `most` operands; `words` that must be there, `free` ones that may be, each with its kind."""

    least: int
    most: float
    words: Mapping[str, str]
    free: Mapping[str, str]


def _takes(
    operands: int, most: float | None = None, free: Mapping[str, str] | None = None, /, **words: str
) -> Signature:
    return Signature(operands, operands if most is None else most, words, free or {})


_CUT: Final = {"dim": "axis", "start": "count", "stop": "count", "step": "count"}
_OVER: Final = {"dims": "axes", "keep": "truth"}
_ONE: Final = OPAQUE | {"neg", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "sigmoid", "logical_not"}

SIGNATURES: Final[Mapping[str, Signature]] = {
    **{name: _takes(1) for name in _ONE},
    **{name: _takes(2) for name in ("logical_and", "logical_or", "matmul")},
    **{name: _takes(1, **_OVER) for name in ("sum", "amax", "amin")},
    **{name: _takes(1, diagonal="whole") for name in ("tril", "triu")},
    "reshape": _takes(1, shape="sizes"),
    "expand": _takes(1, shape="sizes"),
    "permute": _takes(1, dims="axes"),
    "slice": _takes(1, **_CUT),
    "slice_scatter": _takes(2, **_CUT),
    "cat": _takes(1, inf, dim="axis"),
    "full": _takes(0, shape="sizes", value="number", dtype="text"),
    "iota": _takes(0, n="count", start="number", step="number", dtype="text"),
    "cast": _takes(1, dtype="text", was="text"),
    "where": _takes(3),
    "gather": _takes(2, 2, {"wrap": "truth"}, dim="axis"),
    "scatter_add": _takes(3, 3, {"wrap": "truth"}, dim="axis"),
    "index": _takes(2, inf, {"wrap": "truth"}),
    "index_add": _takes(3, inf, {"wrap": "truth"}),
    "cumsum": _takes(1, dim="axis"),
    "topk": _takes(1, dim="axis", k="count", largest="truth"),
    "sort": _takes(1, dim="axis", descending="truth"),
    "all_reduce": _takes(1, op="text", ranks="sizes"),
    "all_gather": _takes(1, ranks="sizes"),
    "reduce_scatter": _takes(1, op="text", ranks="sizes"),
    "all_to_all": _takes(1, ranks="sizes", send="sizes", receive="sizes"),
    "broadcast": _takes(1, ranks="sizes", source="count"),
    "reduce": _takes(1, op="text", ranks="sizes", target="count"),
    "send": _takes(1, to="count", tag="whole"),
    "recv": _takes(0, of="count", tag="whole"),
}
"""Operator -> its operands and words (`models.equality.program` says what they mean); those of two operands, or of one
and a number, are below."""

_PAIR: Final = _takes(2)
_BESIDE: Final = _takes(1, 1, {"reverse": "truth"}, number="number")


def require_step(program: RankProgram, step: Step) -> None:
    """`Malformed` where no run has such a step; `Undecided` where it means something else of its element types."""
    words = dict(step.words)
    if step.operator in TWO | COMPARED:
        known: Signature | None = _BESIDE if "number" in words else _PAIR
    else:
        known = SIGNATURES.get(step.operator)
    if known is None:
        raise Undecided(f"operator {step.operator} is not known here")
    if not known.least <= len(step.reads) <= known.most:
        raise Malformed(f"{step.operator} has {len(step.reads)} operands")
    if len(words) != len(step.words):
        raise Malformed(f"{step.operator} says a word twice")
    if missing := sorted(known.words.keys() - words.keys()):
        raise Malformed(f"{step.operator} says no {missing[0]}")
    rank = len(program.tensors[step.reads[0]].shape) if step.reads else 0
    for name, value in words.items():
        kind = known.words.get(name) or known.free.get(name)
        if kind is None:
            raise Malformed(f"{step.operator} has no word {name[:40]!r}")
        if not KINDS[kind](value, rank):
            raise Malformed(f"{step.operator} says that {name} is {str(value)[:40]}")
    _require_types(program, step, words)
    _require_sizes(program, step, words)


MOVED: Final = frozenset(
    {
        *("reshape", "permute", "expand", "slice", "cat", "slice_scatter", "tril", "triu", "gather", "index", "where"),
        *("all_gather", "all_to_all", "broadcast", "send", "recv", "amax", "amin", "maximum", "minimum", "mul"),
    }
)
"""Operators that mean of truth values what they mean of the numbers 0 and 1."""
TRUTHS_MADE: Final = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "full", "cast", "topk", "sort"})
FRACTIONS: Final = frozenset({"exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "sigmoid"})
"""Operators whose results of whole numbers are none."""
LOGICAL: Final = frozenset({"logical_and", "logical_or", "logical_not"})
REDUCED: Final = frozenset({"all_reduce", "reduce", "reduce_scatter"})


def _require_sizes(program: RankProgram, step: Step, words: Mapping[str, Word]) -> None:
    """`Malformed` where a step reads tensors of sizes that it cannot, or leaves some of their elements."""
    shapes = [program.tensors[i].shape for i in step.reads]
    match step.operator:
        case "matmul":
            a, b = shapes
            fits = len(a) == len(b) >= 2 and a[-1] == b[-2]
            if not fits or any(m != n and 1 not in (m, n) for m, n in zip(a[:-2], b[:-2], strict=True)):
                raise Malformed(f"a product of {a} and {b}")
        case "permute":
            dims = words["dims"]
            if not isinstance(dims, tuple) or len(dims) != len(shapes[0]):
                raise Malformed(f"permute takes {dims} of {shapes[0]}")
        case "expand":
            wide = words["shape"]
            if not isinstance(wide, tuple) or len(wide) < len(shapes[0]):
                raise Malformed(f"expand makes {wide} of {shapes[0]}")
        case "tril" | "triu":
            if len(shapes[0]) < 2:
                raise Malformed(f"{step.operator} of {shapes[0]}, which is no matrix")
        case "all_to_all":
            send = words["send"]
            if not isinstance(send, tuple) or not shapes[0] or sum(send) != shapes[0][0]:
                raise Malformed(f"all_to_all sends {send} rows of {shapes[0]}")
        case _:
            pass


def _require_types(program: RankProgram, step: Step, words: Mapping[str, Word]) -> None:
    """`Undecided` where an operator means something else of truth values or whole numbers than of real ones;
    `Malformed` where a step says other element types than its tensors have.
    """
    reads, makes = ([program.tensors[i].dtype for i in numbers] for numbers in (step.reads, step.makes))
    if step.operator == "cast" and (words.get("dtype") != makes[0] or words.get("was") != reads[0]):
        raise Malformed(f"cast from {reads[0]} to {makes[0]} says {words.get('was')}, {words.get('dtype')}")
    if step.operator in ("full", "iota"):
        _require_constant(makes[0] if makes else "", step.operator, words)
    index = {"gather": reads[1:], "scatter_add": reads[1:2], "index": reads[1:], "index_add": reads[1:-1]}
    if any(not r.startswith(("int", "uint")) for r in index.get(step.operator, [])):
        raise Undecided(f"{step.operator} at positions that are no whole numbers")
    if step.operator in LOGICAL and any(r != "bool" for r in reads):
        raise Undecided(f"{step.operator} of numbers")
    if step.operator == "where" and reads[0] != "bool":
        raise Undecided("a choice by what is no truth value")
    narrow = [m for m in makes if m == "bool" or m.startswith(("int", "uint"))]
    if narrow and step.operator not in TRUTHS_MADE and any(r.startswith(("float", "bfloat")) for r in reads):
        raise Undecided(f"{step.operator} makes {narrow[0]} of real numbers")
    number = words.get("number", 0)
    fraction = step.operator in FRACTIONS or (isinstance(number, float) and bool(number % 1))
    if narrow and fraction and step.operator not in TRUTHS_MADE:
        raise Undecided(f"{step.operator} makes {narrow[0]} of what need not be whole")
    if "bool" in makes and step.operator not in MOVED | TRUTHS_MADE | LOGICAL:
        raise Undecided(f"{step.operator} makes truth values")
    if step.operator in REDUCED and words.get("op") == "avg" and not reads[0].startswith(("float", "bfloat")):
        raise Undecided(f"an average of {reads[0]}")


def _require_constant(makes: str, operator: str, words: Mapping[str, Word]) -> None:
    """`Malformed` where a constant is of another element type than it says, or has numbers that its type has not."""
    if words["dtype"] != makes:
        raise Malformed(f"{operator} makes {makes}, and says {words['dtype']}")
    numbers = [w for key in ("value", "start", "step") if isinstance(w := words.get(key), int | float)]
    if makes.startswith(("int", "uint", "bool")) and any(n % 1 for n in numbers):
        raise Malformed(f"{operator} makes {makes} of a fraction")
    if makes == "bool" and any(n not in (0, 1) for n in numbers):
        raise Malformed(f"{operator} makes truth values of {numbers[0]}")


def require_shape(program: RankProgram, step: Step, number: int, shape: tuple[int, ...]) -> None:
    """`Malformed` where a step makes a tensor of another shape than the program says."""
    if shape != program.tensors[number].shape:
        said = program.tensors[number].shape
        raise Malformed(f"{step.operator} makes a tensor of shape {shape}, the program says {said}")
