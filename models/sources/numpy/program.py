"""Programs: plain NumPy functions whose arguments have known shapes.

    @program(x=(64, 784), w=parameter(784, 512))         or        def mlp(x: float64[64, 784], w: float64[784, 512]):
    ..
    def mlp(x, w):
        return np.maximum(x @ w, 0)

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


class _Dtype:
    """`float64[64, 784]` is an `ArraySpec`; `float64` alone is a number."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, shape: int | tuple[int, ...]) -> ArraySpec:
        return ArraySpec(shape if isinstance(shape, tuple) else (shape,), self.name)

    def __repr__(self) -> str:
        return self.name


float64, float32 = _Dtype("float64"), _Dtype("float32")
int64, int32, boolean = _Dtype("int64"), _Dtype("int32"), _Dtype("bool")


def parameter(*shape: int, dtype: str = "float64") -> ArraySpec:
    """An argument that is a stored weight.

    >>> parameter(784, 512).role.value
    'parameter'
    """
    return ArraySpec(shape, dtype, Role.PARAMETER)


def program(
    dtype: str = "float64", /, **arguments: tuple[int, ...] | ArraySpec
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a NumPy function the shapes of its arguments: a tuple (of type `dtype`) or an `ArraySpec` each.

    >>> @program(x=(4,), scale=())
    ... def scaled(x, scale):
    ...     return x * scale
    >>> arguments_of(scaled)["x"].shape, scaled(2, 3)
    ((4,), 6)
    """
    specs = {n: a if isinstance(a, ArraySpec) else ArraySpec(tuple(a), dtype) for n, a in arguments.items()}

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        setattr(function, _MARK, specs)
        return function

    return mark


def is_numpy_program(found: object) -> bool:
    """Whether an object is a function that `program` decorated, or one whose arguments are annotated with shapes."""
    return callable(found) and (
        hasattr(found, _MARK)
        or hasattr(found, MARKED)
        or any(isinstance(a, ArraySpec) for a in _annotations(found).values())
    )


def arguments_of(
    function: Callable[..., object], other: Mapping[str, ArraySpec | tuple[int, ...]] | None = None
) -> dict[str, ArraySpec]:
    """The arguments in the order of the signature, some replaced.  Raises `GraphError` naming an argument without a
    shape.
    """
    given: dict[str, ArraySpec] = {
        **_annotations(function),
        **cast("Mapping[str, ArraySpec]", getattr(function, _MARK, {})),
    }
    for argument, new in (other or {}).items():
        given[argument] = (
            new if isinstance(new, ArraySpec) else replace(given.get(argument, ArraySpec(())), shape=tuple(new))
        )
    name = getattr(function, "__name__", str(function))
    signature = inspect.signature(function)
    unknown = sorted((set(getattr(function, _MARK, {})) | set(other or {})) - set(signature.parameters))
    if unknown:
        raise GraphError(f"program {name!r}", f"has no argument {unknown[0]!r}")
    out: dict[str, ArraySpec] = {}
    for parameter_name, p in signature.parameters.items():
        if isinstance(given.get(parameter_name), ArraySpec):
            out[parameter_name] = given[parameter_name]
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


def _annotations(function: object) -> dict[str, ArraySpec]:
    if not inspect.isfunction(function):
        return {}
    try:
        found = inspect.get_annotations(function, eval_str=True)
    except (NameError, SyntaxError, TypeError):
        found = function.__annotations__
    return {n: a for n, a in found.items() if isinstance(a, ArraySpec)}
