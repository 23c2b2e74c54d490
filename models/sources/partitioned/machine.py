"""Writes down what one rank does of a StableHLO module, function by function.

Inside `sdy.manual_computation` (what `shard_map` becomes) tensors are a rank's own, and collectives are there as the
user wrote them.  Outside tensors are whole: every rank computes on all of it, and gathers what a manual computation
left in parts when something else than another one reads it.  XLA may do that part otherwise; it computes the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from ...equality.captured import Unreadable
from ..jax.ir import Block, Module, Op, Result, inside, integer, text
from .collectives import COLLECTIVES, Place
from .indexed import INDEXED
from .operators import HANDLERS
from .shardings import Mesh, Sharding, mesh_of, shardings_of
from .writer import Writer

MOST_TURNS: Final = 10_000
"""Turns of a loop; they are written down one by one."""
_LINE: Final = re.compile(r'"([^"]+\.(?:py|mlir)|-)":(\d+)')
PLACED: Final = ("Sharding", "annotate_device_placement")
"""Custom calls that say where a tensor lies, and nothing about its numbers."""


@dataclass(frozen=True)
class Held:
    """A tensor of the rank; `sharding`: of the whole of which it is the rank's part, None where it is the rank's own or
    whole; `parts`: of a tuple, which has no number.
    """

    number: int
    sharding: Sharding | None = None
    parts: tuple[Held, ...] = ()


@dataclass
class Machine:
    """Reads a module as one rank; `manual`: whether what runs now is a rank's own program; `lines`: where an operator
    stands, `line_of` where nothing else is given.
    """

    module: Module
    place: Place
    writer: Writer
    manual: bool = False
    lines: Callable[[Op], str] | None = None
    functions: Mapping[str, Op] = field(init=False)

    def __post_init__(self) -> None:
        found = [f.operation for f in self.module.body.operations if f.operation.name == "func.func"]
        self.functions = {text(f, "sym_name"): f for f in found}

    def main(self) -> Block:
        """The body of the function that runs."""
        if "main" not in self.functions:
            raise Unreadable(f"the module has no function @main; it has {', '.join(self.functions) or 'none'}")
        return self.functions["main"].regions[0].blocks[0]

    def run(self, arguments: Sequence[Held]) -> list[Held]:
        """What @main returns."""
        return self._block(self.main(), arguments, {})

    def _block(self, block: Block, arguments: Sequence[Held], outer: Mapping[Result, Held]) -> list[Held]:
        held = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for view in block.operations:
            op = view.operation
            given = [held[o] for o in op.operands]
            if op.name in ("func.return", "stablehlo.return", "sdy.return"):
                return given
            before = self.writer.place
            self.writer.place = (self.lines or line_of)(op) or before
            made = self._one(op, given, held)
            self.writer.place = before
            held.update(zip(op.results, made, strict=True))
        return []

    def _one(self, op: Op, given: Sequence[Held], held: Mapping[Result, Held]) -> Sequence[Held]:
        match op.name:
            case "func.call" | "call":
                return self._block(self.functions[text(op, "callee")].regions[0].blocks[0], given, {})
            case "sdy.manual_computation":
                return self._manual(op, given, held)
            case "stablehlo.tuple":
                return [Held(-1, None, tuple(given))]
            case "stablehlo.get_tuple_element":
                return [given[0].parts[integer(op, "index")]]
            case "stablehlo.while":
                return self._turns(op, given, held)
            case "stablehlo.case" | "stablehlo.if":
                return self._branch(op, given, held)
            case "stablehlo.composite":  # its name is a promise; what it does is its decomposition
                return self._block(self.functions[text(op, "decomposition")].regions[0].blocks[0], given, {})
            case "stablehlo.custom_call":
                target = text(op, "call_target_name")
                if target in PLACED:
                    return given
                raise self.writer.refuse(f"custom call {target}")
            case _:
                return self._local(op.name, op, given)

    def _local(self, name: str, op: Op, given: Sequence[Held]) -> Sequence[Held]:
        w = self.writer
        numbers = [self._whole(h) for h in given]
        if name in COLLECTIVES:
            if not self.manual:
                raise w.refuse(f"{name} outside of a manual computation")
            made = COLLECTIVES[name](self.place, w, op, numbers)
        else:
            handler = HANDLERS.get(name) or INDEXED.get(name)
            if handler is None:
                raise w.refuse(f"operator {name} is not known here")
            made = handler(w, op, numbers)
        for number, result in zip(made, op.results, strict=True):
            if w.shape(number) != tuple(result.type.shape):
                raise w.refuse(f"{name} makes shape {tuple(result.type.shape)} and was read as {w.shape(number)}")
        return [Held(n) for n in made]

    def _whole(self, held: Held) -> int:
        return held.number if held.sharding is None else held.sharding.join(self.writer, held.number, self.place.rank)

    def _manual(self, op: Op, given: Sequence[Held], held: Mapping[Result, Held]) -> Sequence[Held]:
        w = self.writer
        if self.manual:
            raise w.refuse("a manual computation inside of another one")
        there, after = (
            shardings_of(str(op.attributes[n]), self.place.meshes) for n in ("in_shardings", "out_shardings")
        )
        arguments = []
        for one, sharding in zip(given, there, strict=True):
            if one.sharding == sharding:
                arguments.append(Held(one.number))
            else:
                arguments.append(Held(sharding.cut(w, self._whole(one), self.place.rank)))
        self.manual = True
        made = self._block(op.regions[0].blocks[0], arguments, held)
        self.manual = False
        return [Held(m.number, s) for m, s in zip(made, after, strict=True)]

    def _turns(self, op: Op, given: Sequence[Held], held: Mapping[Result, Held]) -> Sequence[Held]:
        condition, body = (r.blocks[0] for r in op.regions)
        now = [Held(self._whole(h)) for h in given]
        for _ in range(MOST_TURNS):
            going = self.writer.uniform(self._block(condition, now, held)[0].number)
            if going is None:
                raise self.writer.refuse("a loop whose number of iterations depends on data")
            if not going:
                return now
            now = [Held(self._whole(h)) for h in self._block(body, now, held)]
        raise self.writer.refuse(f"a loop of more than {MOST_TURNS} turns")

    def _branch(self, op: Op, given: Sequence[Held], held: Mapping[Result, Held]) -> Sequence[Held]:
        chosen = self.writer.uniform(given[0].number)
        if chosen is None:
            raise self.writer.refuse(f"{op.name}: which branch runs depends on data")
        if op.name == "stablehlo.if":
            number = 0 if chosen else 1
        else:  # a number outside stands for the last
            number = int(chosen) if 0 <= chosen < len(op.regions) else len(op.regions) - 1
        return self._block(op.regions[number].blocks[0], [], held)


def meshes_of(module: Module) -> dict[str, Mesh]:
    """Meshes of a module, by name."""
    found = [o.operation for o in module.body.operations if o.operation.name == "sdy.mesh"]
    return {text(o, "sym_name"): mesh_of(str(o.attributes["mesh"])) for o in found}


def read_by_manual(machine: Machine) -> list[Sharding | None]:
    """Of every argument of @main the sharding in which manual computations read it, if nothing else does and all read
    it alike.
    """
    found: dict[Result, set[Sharding | None]] = {}

    def walk(block: Block, names: Mapping[Result, Result]) -> None:
        for view in block.operations:
            op = view.operation
            if op.name in ("func.call", "call"):
                inner = machine.functions[text(op, "callee")].regions[0].blocks[0]
                walk(inner, {a: names[o] for a, o in zip(inner.arguments, op.operands, strict=True) if o in names})
                continue
            asked: Sequence[Sharding | None] = [None] * len(op.operands)
            if op.name == "sdy.manual_computation":
                asked = shardings_of(str(op.attributes["in_shardings"]), machine.place.meshes)
            else:
                for below in inside(op):
                    for o in below.operands:
                        if o in names:
                            found.setdefault(names[o], set()).add(None)
            for o, sharding in zip(op.operands, asked, strict=True):
                if o in names:
                    found.setdefault(names[o], set()).add(sharding)

    block = machine.main()
    walk(block, {a: a for a in block.arguments})
    rows = [found.get(a, {None}) for a in block.arguments]
    return [next(iter(row)) if len(row) == 1 else None for row in rows]


def manual_everywhere(module: Module, meshes: Mapping[str, Mesh]) -> bool:
    """Whether a module has manual computations, and each is manual in all axes of its mesh."""
    manual = [o for f in module.body.operations for o in inside(f.operation) if o.name == "sdy.manual_computation"]
    most = max((prod(n for _, n in m.axes) for m in meshes.values()), default=1)
    return bool(manual) and all(
        prod(n for m in meshes.values() for a, n in m.axes if f'"{a}"' in str(o.attributes["manual_axes"])) == most
        for o in manual
    )


def line_of(op: Op) -> str:
    """The user's line of an operator, as far as the module says."""
    found = _LINE.search(str(op.location))
    return f"{found[1].rpartition('/')[2]}:{found[2]}" if found else ""
