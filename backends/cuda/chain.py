"""Generates elementwise chains: several map operators on one iteration box as one kernel.

    for every point p of the box:   v_k = f_k(operands and earlier v at p),   k = 1 ..;   y_j[p] = v_{r_j}

Every operand is read once, intermediate values live in registers, results are written once.  A bias-activation epilogue
is the chain  add(x, b), f  with b broadcast over the rows.  Where the innermost extent and all strides allow, memory is
              accessed 16 bytes
at a time.  No thread talks to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...models.program.operators import Operator
from .expressions import expression
from .kernel import (
    C_TYPES,
    LANES,
    MOST_BLOCKS,
    REALS,
    VECTORS,
    Kernel,
    KernelTextError,
    Operand,
    dense,
    index_type,
    merge_dimensions,
    unique_name,
)

BLOCK = 256


@dataclass(frozen=True)
class Step:
    """One map operator; `arguments`: i < number of operands: that operand; otherwise the value of step i - number
    of operands.
    """

    operator: Operator
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """`shape`: lengths of the iteration box; `results`: steps whose values are written, dense, in this order."""

    shape: tuple[int, ...]
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]


def real_of(operands: Sequence[Operand]) -> str:
    """The one real type of the operands; `KernelTextError` for a mixture, or integers."""
    found = dict.fromkeys(o.c_type for o in operands if o.dtype in REALS)
    if len(found) != 1:
        raise KernelTextError(f"operands of types {sorted({o.dtype for o in operands})} have no common real type")
    return next(iter(found))


def values(
    steps: Sequence[Step], given: Sequence[tuple[str, str]], real: str, tag: str
) -> tuple[list[str], list[tuple[str, str]]]:
    """(statements, (C type, name) of every step's value) for one point; `given`: C type and text of the operands
    there.
    """
    known, lines = list(given), []
    for k, step in enumerate(steps):
        c_type, text = expression(step.operator, [known[i] for i in step.arguments], real)
        lines.append(f"const {c_type} v{k}{tag} = {text};")
        known.append((c_type, f"v{k}{tag}"))
    return lines, known[len(given) :]


def generate(chain: Chain) -> Kernel:
    """The kernel of a chain.  Raises `KernelTextError` where a function or an element type has no text, or the box
    is empty.
    """
    if prod(chain.shape) == 0:
        raise KernelTextError("an empty box needs no kernel")
    real = real_of(chain.operands)
    shape, walks = merge_dimensions(chain.shape, [*(o.strides for o in chain.operands), dense(chain.shape)])
    inputs, out = walks[:-1], walks[-1]
    kinds = [t for t, _ in values(chain.steps, [(o.c_type, "0") for o in chain.operands], real, "")[1]]
    vector_type = VECTORS[real][0]
    width = _width(chain, shape, inputs, all(kinds[r] == real for r in chain.results))
    integer = index_type(shape, walks)
    total = prod(shape) // width
    sizes = [*shape[:-1], shape[-1] // width]
    lines = [
        f"for ({integer} i = ({integer})blockIdx.x * {BLOCK} + threadIdx.x; i < {total}; "
        + f"i += ({integer})gridDim.x * {BLOCK}) {{",
        *_coordinates(sizes, integer),
    ]

    def offset(walk: Sequence[int]) -> str:
        terms = [f"c{k} * {s * (width if k == len(sizes) - 1 else 1)}" for k, s in enumerate(walk) if s]
        return " + ".join(terms) or "0"

    given: list[list[tuple[str, str]]] = [[] for _ in range(width)]
    for j, (o, walk) in enumerate(zip(chain.operands, inputs, strict=True)):
        if width > 1 and walk[-1] == 1:
            lines.append(
                f"const {vector_type} q{j} = *reinterpret_cast<const {vector_type}*>(x{j} + ({offset(walk)}));"
            )
            names = [f"q{j}.{LANES[lane]}" for lane in range(width)]
        else:
            lines.append(f"const {o.c_type} q{j} = x{j}[{offset(walk)}];")
            names = [f"q{j}"] * width
        for lane in range(width):
            given[lane].append((o.c_type, names[lane]))
    found = []
    for lane in range(width):
        statements, all_values = values(chain.steps, given[lane], real, f"_{lane}")
        lines += statements
        found.append(all_values)
    for n, r in enumerate(chain.results):
        if width == 1:
            lines.append(f"y{n}[{offset(out)}] = {found[0][r][1]};")
        else:
            quad = ", ".join(found[lane][r][1] for lane in range(width))
            lines.append(f"*reinterpret_cast<{vector_type}*>(y{n} + ({offset(out)})) = make_{vector_type}({quad});")
    lines.append("}")
    results = [kinds[r] for r in chain.results]
    parameters = [
        *(f"const {o.c_type}* __restrict__ x{j}" for j, o in enumerate(chain.operands)),
        *(f"{t}* __restrict__ y{n}" for n, t in enumerate(results)),
    ]
    body = "\n    ".join(lines)
    text = f'extern "C" __global__ void __launch_bounds__({BLOCK}) NAME({", ".join(parameters)}) {{\n    {body}\n}}\n'
    name, text = unique_name("chain", text)
    types = (*(o.c_type for o in chain.operands), *results)
    return Kernel(name, text, types, (min(MOST_BLOCKS, -(-total // BLOCK)), 1), BLOCK, width)


def _width(chain: Chain, shape: Sequence[int], inputs: Sequence[Sequence[int]], plain: bool) -> int:
    """Elements that a thread takes at once: a whole vector where rows and strides allow it; `plain`: all results are of
    the type that is computed in.
    """
    width = VECTORS[real_of(chain.operands)][1]
    masks = any(o.dtype not in REALS for o in chain.operands)
    uneven = any(w[-1] not in (0, 1) or (w[-1] == 1 and any(s % width for s in w[:-1])) for w in inputs)
    return width if plain and not (masks or shape[-1] % width or uneven) else 1


def _coordinates(sizes: Sequence[int], integer: str) -> list[str]:
    """C of the coordinates c0, c1, .. of element i of a box."""
    lines, rest = list[str](), "i"
    for k in reversed(range(1, len(sizes))):
        lines += [f"const {integer} c{k} = {rest} % {sizes[k]};", f"const {integer} r{k} = {rest} / {sizes[k]};"]
        rest = f"r{k}"
    return [*lines, f"const {integer} c0 = {rest};"]


def result_types(chain: Chain) -> tuple[str, ...]:
    """NumPy's names of the element types of the results."""
    real = real_of(chain.operands)
    names = {c: name for name, c in C_TYPES.items()}
    kinds = values(chain.steps, [(o.c_type, "0") for o in chain.operands], real, "")[1]
    return tuple(names[kinds[r][0]] for r in chain.results)
