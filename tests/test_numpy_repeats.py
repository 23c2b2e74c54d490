"""NumPy programs that do not do the same every time, or go on without the data of an array, are refused by name."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable

import numpy as np
import numpy.random as aliased
import pytest
from numpy.random import rand

from shardproof.models.sources.numpy.program import program
from shardproof.models.sources.numpy.trace import TraceError, trace

RNG, LEGACY, PYTHON, SYSTEM = (
    np.random.default_rng(0),
    np.random.RandomState(0),
    random.Random(0),
    random.SystemRandom(),
)
ACCUMULATED, COUNT = np.zeros(4), [0]


class Holder:
    """Something with a generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)


HELD = Holder()


def noise() -> np.ndarray:
    return RNG.normal(size=4)


def global_array(x: np.ndarray) -> np.ndarray:
    ACCUMULATED[...] += 1
    return x + ACCUMULATED


def counter(x: np.ndarray) -> np.ndarray:
    COUNT[0] += 1
    return x * COUNT[0]


def shuffled(x: np.ndarray) -> np.ndarray:
    ids = np.arange(4)
    np.random.shuffle(ids)
    return np.take(x, ids)


DRAWN: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "legacy": (lambda x: x + np.random.rand(4), "np.random"),
    "imported by name": (lambda x: x + rand(4), "np.random"),
    "module alias": (lambda x: x + aliased.normal(size=4), "np.random"),
    "shuffle": (shuffled, "np.random"),
    "generator": (lambda x: x + RNG.normal(size=4), "RNG"),
    "positions": (lambda x: x[RNG.permutation(4)], "RNG"),
    "behind a function": (lambda x: x + noise(), "RNG"),
    "attribute": (lambda x: x + HELD.rng.normal(size=4), "HELD.rng"),
    "random state": (lambda x: x + LEGACY.rand(4), "LEGACY"),
    "python": (lambda x: x * random.random(), "random"),
    "python's generator": (lambda x: x * PYTHON.random(), "PYTHON"),
    "a coin": (lambda x: x * 2 if np.random.rand() < 0.5 else x * 3, "np.random"),
    "a coin of python": (lambda x: x * 2 if random.random() < 0.5 else x * 3, "random"),
    "default argument": (lambda x, r=RNG: x + r.normal(size=4), "default"),
}
OTHERWISE: dict[str, Callable[[np.ndarray], object]] = {
    "a new generator": lambda x: x + np.random.default_rng().normal(size=4),
    "system": lambda x: x * SYSTEM.random(),
    "clock": lambda x: x * time.perf_counter_ns(),
    "bytes of the system": lambda x: x * int.from_bytes(os.urandom(8)),
    "identifiers": lambda x: x * (uuid.uuid4().int % 2**40),
    "global array": global_array,
    "counter": counter,
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers_are_no_constants(name: str) -> None:
    function, generator = DRAWN[name]
    with pytest.raises(TraceError, match=rf"draws random numbers \({generator}"):
        trace(program(x=(4,))(function))


def test_the_line_of_a_draw_is_said() -> None:
    with pytest.raises(TraceError, match=r"test_numpy_repeats\.py:\d+: draws random numbers \(np\.random\)"):
        trace(program(x=(4,))(DRAWN["legacy"][0]))


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_differs_from_call_to_call_is_no_constant(name: str) -> None:
    with pytest.raises(TraceError, match="does something else in every call"):
        trace(program(x=(4,))(OTHERWISE[name]))


def test_what_is_the_same_in_every_call_is_a_constant() -> None:
    """A program that seeds its generators itself computes the same numbers whenever it is called."""

    def seeded(x: np.ndarray) -> np.ndarray:
        np.random.seed(1)
        return x + np.random.rand(4) + np.random.default_rng(5).normal(size=4)

    functions = [op.function for op in trace(program(x=(4,))(seeded)).graph.operators]
    assert functions == ["constant", "add", "constant", "add"]


def test_an_error_that_the_program_catches_ends_the_trace_all_the_same() -> None:
    def condition(x: np.ndarray) -> np.ndarray:
        try:
            return x * 2 if x.sum() > 0 else x
        except ValueError:
            return x

    def number(x: np.ndarray) -> np.ndarray:
        try:
            return x * float(x.sum())
        except Exception:  # noqa: BLE001
            return x

    def array(x: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(x) + 1
        except ValueError:
            return x

    for function, said in ((condition, "a condition"), (number, r"float\(\)"), (array, "goes into a NumPy array")):
        with pytest.raises(TraceError, match=said):
            trace(program(x=(4,))(function))
