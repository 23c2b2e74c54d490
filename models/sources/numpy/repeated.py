"""Finds programs that do not do the same every time: random numbers, clocks, what a call leaves behind.

A trace records what a program does once, and whatever is no argument becomes a constant.  That is right for what is the
same in every call (a table, numbers of a generator that the program seeds itself), and wrong for anything else.  So a
program runs twice, and is refused where

    a generator of random numbers that it can reach ends in another state        named by where it is found
    the second trace is another one                                              named by the line of the first constant
                                                                                 that differs
"""

from __future__ import annotations

import inspect
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Final

import numpy as np

from ...program.graph import Graph
from .recorder import TraceError

_DEPTH: Final = 3
"""Functions and modules that are looked through, from the program on."""
_ADVICE: Final = "pass them as an argument of the program, or seed the generator inside it"


def states(program: Callable[..., object]) -> dict[str, bytes]:
    """Generators that a program can reach by name -> their states.

    >>> list(states(lambda: 0))
    ['np.random', 'random']
    """
    found = {"np.random": pickle.dumps(np.random.get_state(legacy=False)), "random": pickle.dumps(random.getstate())}
    for name, value in _reached(inspect.unwrap(program), _DEPTH, set()):
        match value:
            case np.random.Generator():
                found[name] = pickle.dumps(value.bit_generator.state)
            case np.random.RandomState():
                found[name] = pickle.dumps(value.get_state(legacy=False))
            case random.Random() if not isinstance(value, random.SystemRandom):  # that one has no state
                found[name] = pickle.dumps(value.getstate())
    return found


def _reached(function: object, depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
    """What the names that a function reads stand for, and what those of the functions and modules among them do."""
    if not isinstance(function, FunctionType) or depth == 0 or id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    named = {n: function.__globals__[n] for n in _names(code) if n in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            named[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    named |= {f"default of {function.__name__}, {k}": v for k, v in enumerate(function.__defaults__ or ())}
    named |= function.__kwdefaults__ or {}
    for name, value in named.items():
        yield name, value
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in ("numpy", "random"):
            inside = {k: v for k, v in vars(value).items() if k in _names(code)}
        else:
            inside = vars(value) if hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)) else {}
        for k, v in inside.items():
            yield f"{name}.{k}", v
            yield from _reached(v, depth - 1, seen)
        yield from _reached(value, depth - 1, seen)


def _names(code: object) -> set[str]:
    """Global names and attributes that a function and those inside it read."""
    inner = [c for c in getattr(code, "co_consts", ()) if hasattr(c, "co_names")]
    return {*getattr(code, "co_names", ())}.union(*(_names(c) for c in inner))


def check_repeats(
    name: str, first: Graph, second: Graph, before: Mapping[str, bytes], after: Mapping[str, bytes],
    places: Mapping[str, str],
) -> None:  # fmt: skip
    """Compare two traces of a program, and the states of generators behind each.  `places`: lines of constants of the
    second one.  Raises `TraceError`."""
    written = {op.name: op for op in first.operators}
    differing = [op for op in second.operators if written.get(op.name) != op]
    at = next((places[op.name] for op in differing if op.name in places), f"program {name!r}")
    drawn = [k for k, state in after.items() if before.get(k, state) != state]
    if drawn:
        raise TraceError(at, f"draws random numbers ({drawn[0]}), which are others in every call; {_ADVICE}")
    if first != second:
        what = f"{differing[0].name!r} is" if differing else "its results are"
        raise TraceError(
            at,
            f"does something else in every call ({what} not the same twice): random numbers, a clock, or what an "
            f"earlier call left behind; {_ADVICE}",
        )
