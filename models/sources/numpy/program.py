"""Programs: plain NumPy functions whose arguments have known shapes.

    @program(x=(64, 784), w=parameter(784, 512))         or        def mlp(x: float64[64, 784], w: float64[784, 512]):
    ..
    def mlp(x, w):
        return np.maximum(x @ w, 0)

A size may have a name, `float64["N", 8]`: it gets its number where the program is planned, `FILE.py:mlp:N=64`, or from
example arrays, and is the same wherever the name stands.

The decorated function stays what it was and runs on NumPy arrays.  `shardproof plan FILE.py:mlp` traces it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, ParamSpec, TypeVar, cast

import numpy as np

from ...program.graph import GraphError, Role

P = ParamSpec("P")
R = TypeVar("R")

_MARK: Final = "__shardproof_arguments__"
MARKED: Final = "__shardproof_dace__"
"""Programs in the notation of the thesis (`dace`)."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape, element type and role of an argument."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    role: Role = Role.INPUT
    storage: str = ""

    def __matmul__(self, storage: Enum) -> ArraySpec:
        """`float64[20] @ StorageType.GPU_Global`: where one rank keeps it, which `run --backend` decides."""
        return replace(self, storage=f"{type(storage).__name__}.{storage.name}")


@dataclass(frozen=True)
class SizedSpec:
    """An `ArraySpec` some of whose sizes are names."""

    shape: tuple[int | str, ...]
    dtype: str = "float64"
    role: Role = Role.INPUT

    def bind(self, given: ArraySpec, name: str, sizes: dict[str, int]) -> None:
        """Take the numbers of the names from an array that is given.  Raises `GraphError` where they do not fit."""
        if len(given.shape) != len(self.shape):
            raise GraphError(
                f"argument {name!r}", f"has shape {given.shape}, and the program says {len(self.shape)} dimensions"
            )
        for size, number in zip(self.shape, given.shape, strict=True):
            expected = sizes.setdefault(size, number) if isinstance(size, str) else size
            if expected != number:
                raise GraphError(f"argument {name!r}", f"has shape {given.shape}, and {size} is {expected}")

    def resolve(self, name: str, sizes: Mapping[str, int]) -> ArraySpec:
        """The spec with numbers.  Raises `GraphError` naming a size without one."""
        if lost := [s for s in self.shape if isinstance(s, str) and s not in sizes]:
            raise GraphError(
                f"argument {name!r}",
                f"size {lost[0]!r} has no number; write FILE.py:NAME:{lost[0]}=64, or give example arrays",
            )
        return ArraySpec(tuple(sizes[s] if isinstance(s, str) else s for s in self.shape), self.dtype, self.role)


def _spec(shape: tuple[int | str, ...], dtype: str, role: Role) -> ArraySpec | SizedSpec:
    if wrong := [s for s in shape if isinstance(s, str) and not s.isidentifier()]:
        raise GraphError("a shape", f"{wrong[0]!r} is no name of a size")
    if any(isinstance(s, str) for s in shape):
        return SizedSpec(shape, dtype, role)
    return ArraySpec(tuple(s for s in shape if not isinstance(s, str)), dtype, role)


class _Dtype:
    """`float64[64, 784]` is an `ArraySpec`; `float64` alone is a number."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, shape: int | str | tuple[int | str, ...]) -> ArraySpec | SizedSpec:
        return _spec(shape if isinstance(shape, tuple) else (shape,), self.name, Role.INPUT)

    def __repr__(self) -> str:
        return self.name


float64, float32 = _Dtype("float64"), _Dtype("float32")
int64, int32, boolean = _Dtype("int64"), _Dtype("int32"), _Dtype("bool")


def parameter(*shape: int | str, dtype: str = "float64") -> ArraySpec | SizedSpec:
    """An argument that is a stored weight.

    >>> parameter(784, 512).role.value
    'parameter'
    """
    return _spec(shape, dtype, Role.PARAMETER)


def program(
    dtype: str = "float64", /, **arguments: tuple[int | str, ...] | ArraySpec | SizedSpec
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a NumPy function the shapes of its arguments: a tuple (of type `dtype`) or an `ArraySpec` each.

    >>> @program(x=(4,), scale=())
    ... def scaled(x, scale):
    ...     return x * scale
    >>> arguments_of(scaled)["x"].shape, scaled(2, 3)
    ((4,), 6)
    """
    specs = {
        n: a if isinstance(a, (ArraySpec, SizedSpec)) else _spec(tuple(a), dtype, Role.INPUT)
        for n, a in arguments.items()
    }

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        setattr(function, _MARK, specs)
        return function

    return mark


def is_numpy_program(found: object) -> bool:
    """Whether an object is a function that `program` decorated, or one whose arguments are annotated with shapes."""
    return callable(found) and (hasattr(found, _MARK) or hasattr(found, MARKED) or bool(_annotations(found)))


def arguments_of(
    function: Callable[..., object],
    other: Mapping[str, ArraySpec | tuple[int, ...]] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, ArraySpec]:
    """The arguments in the order of the signature, some replaced; `sizes`: numbers of sizes that have names.  Raises
    `GraphError` naming an argument without a shape, a size without a number, or one that no argument has.
    """
    stated: dict[str, ArraySpec | SizedSpec] = {
        **_annotations(function),
        **cast("Mapping[str, ArraySpec | SizedSpec]", getattr(function, _MARK, {})),
    }
    bound = dict(sizes or {})
    named = {s for a in stated.values() if isinstance(a, SizedSpec) for s in a.shape if isinstance(s, str)}
    if extra := sorted({*bound} - named):
        raise GraphError(
            f"program {getattr(function, '__name__', function)!r}",
            f"has no size {extra[0]!r}; its sizes: {', '.join(sorted(named)) or 'none with a name'}",
        )
    replaced: dict[str, ArraySpec] = {}
    for argument, new in (other or {}).items():
        old = stated.get(argument, ArraySpec(()))
        whole = new if isinstance(new, ArraySpec) else ArraySpec(tuple(new), old.dtype, old.role)
        if isinstance(old, SizedSpec):
            old.bind(whole, argument, bound)
        replaced[argument] = whole
    given = {n: a.resolve(n, bound) if isinstance(a, SizedSpec) and n not in replaced else a for n, a in stated.items()}
    given |= replaced
    name = getattr(function, "__name__", str(function))
    signature = inspect.signature(function)
    unknown = sorted((set(getattr(function, _MARK, {})) | set(other or {})) - set(signature.parameters))
    if unknown:
        raise GraphError(f"program {name!r}", f"has no argument {unknown[0]!r}")
    out: dict[str, ArraySpec] = {}
    for parameter_name, p in signature.parameters.items():
        if isinstance(spec := given.get(parameter_name), ArraySpec):
            out[parameter_name] = spec
        elif p.default is inspect.Parameter.empty:
            raise GraphError(
                f"program {name!r}",
                f"argument {parameter_name!r} has no shape; write @program({parameter_name}=(..)) or "
                f"{parameter_name}: float64[..]",
            )
    return out


def shapes_of(function: Callable[..., object], inputs: object) -> dict[str, ArraySpec]:
    """Shapes and types of example arguments: arrays in the order of the signature, or by name; an `ArraySpec` (such as
    `parameter(784, 512)`) stands for itself.  Raises `GraphError` for what is no array.

    >>> import numpy as np
    >>> def layer(x, w):
    ...     return x @ w
    >>> shapes_of(layer, (np.ones((8, 4)), parameter(4, 2)))["x"].shape
    (8, 4)
    """
    name = getattr(function, "__name__", str(function))
    if isinstance(inputs, Mapping):
        given = dict(inputs)
    else:
        listed = inputs if isinstance(inputs, tuple | list) else (inputs,)
        names = list(inspect.signature(function).parameters)
        if len(listed) > len(names):
            raise GraphError(f"program {name!r}", f"takes {len(names)} arguments, {len(listed)} inputs are given")
        given = dict(zip(names, listed, strict=False))
    out: dict[str, ArraySpec] = {}
    for argument, value in given.items():
        if isinstance(value, ArraySpec):
            out[argument] = value
        elif isinstance(value, np.ndarray | np.generic):
            out[argument] = ArraySpec(value.shape, value.dtype.name)
        else:
            raise GraphError(
                f"program {name!r}",
                f"input {argument!r} is a {type(value).__name__}; give an array of NumPy, or shardproof.parameter(..)",
            )
    return out


def _annotations(function: object) -> dict[str, ArraySpec | SizedSpec]:
    if not inspect.isfunction(function):
        return {}
    try:
        found = inspect.get_annotations(function, eval_str=True)
    except (NameError, SyntaxError, TypeError):
        found = function.__annotations__
    return {n: a for n, a in found.items() if isinstance(a, (ArraySpec, SizedSpec))}
