"""Arrays of a run as files: the inputs that a user gives, as one `.npz`.

An array is taken only after its header was read: no objects (they would be unpickled), no complex numbers, and a shape
that the graph asks for, so that memory is asked for what the plan needs and nothing else.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import numpy as np

from ...models.files.input import regular
from ...models.program.graph import Graph, Role, Tensor
from ...models.program.operators import NodeKind
from ...models.text import InputError
from ..kernels import Array
from .reference import constant_values

KINDS: Final = "fiub"
"""NumPy's letters of the element types that programs compute with: reals, integers, truth values."""

_ORDINARY: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


def read_inputs(
    path: Path, graph: Graph, dtype: str | None = None, names: Collection[str] | None = None
) -> dict[str, Array]:
    """Every input and parameter of the graph from an `.npz` file, but for constants whose values are known; others in
    it are left alone.  `dtype`: what floating numbers are converted to; None: as they are in the file.  `names`: those
    that are wanted; None: all.  Raises `InputError` naming file and array.
    """
    known = known_values(graph, dtype)
    wanted = {t.name: t for t in graph.tensors if t.role is not Role.VALUE and t.name not in known}
    wanted = {name: t for name, t in wanted.items() if names is None or name in names}
    try:
        with zipfile.ZipFile(regular(path)) as file:
            listed = [info for info in file.infolist() if info.filename.endswith(".npy")]
            held = {info.filename.removesuffix(".npy"): info for info in listed}
            if len(held) < len(listed):
                raise InputError(f"{path}: holds two arrays of one name")
            missing = sorted(wanted.keys() - held.keys())
            if missing:
                raise InputError(f"{path}: lacks {len(missing)} of {len(wanted)} inputs: {', '.join(missing[:5])}")
            read = {name: _member(file, held[name], t, f"{path}: array {name!r}") for name, t in wanted.items()}
            for name, rows in picked_rows(graph).items():
                if name in read and read[name].dtype.kind in "iu":
                    check_positions(rows, read[name], f"{path}: array {name!r}")
            return known | {n: v if dtype is None or v.dtype.kind != "f" else v.astype(dtype) for n, v in read.items()}
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise _unreadable(path, error) from None


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of an `.npz` file, by their headers.  Raises `InputError` naming file and array."""
    found = dict[str, tuple[int, ...]]()
    try:
        with zipfile.ZipFile(regular(path)) as file:
            for info in file.infolist():
                if info.filename.endswith(".npy"):
                    name = info.filename.removesuffix(".npy")
                    with file.open(info) as stream:
                        found[name] = _header(stream, f"{path}: array {name!r}")[0]
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise _unreadable(path, error) from None
    return found


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read as an .npz file: {error}; write one with numpy.savez")


@dataclass(frozen=True)
class PickedRows:
    """Rows that positions pick: `count` of the smallest table, `by` its reader; `stored`: it is a parameter, of which
    nothing lies before the first row.  (A label below 0 says that there is none.)
    """

    count: int
    by: str
    stored: bool


def picked_rows(graph: Graph) -> dict[str, PickedRows]:
    """Inputs that say which rows of a table are read, as they are given or as parts and copies of that."""
    found: dict[str, PickedRows] = {}
    makers = {op.output.tensor: op for op in graph.operators}
    for op in graph.operators:
        if op.kind is not NodeKind.GATHER:
            continue
        table, name = graph.tensor(op.inputs[0].tensor), op.inputs[-1].tensor
        while name in makers and makers[name].kind is NodeKind.LAYOUT and len(makers[name].inputs) == 1:
            name = makers[name].inputs[0].tensor
        if name not in makers:
            rows = PickedRows(op.axis(op.rows).extent, op.name, table.role is Role.PARAMETER)
            old = found.get(name, rows)
            less = rows if rows.count < old.count else old
            found[name] = replace(less, stored=rows.stored or old.stored)
    return found


def check_positions(rows: PickedRows, array: Array, place: str) -> None:
    """Raise `InputError` where positions are those of no row: on ranks and in one process alike nothing would be read
    there, and no library takes them.
    """
    if array.size == 0:
        return
    low, high = int(array.min()), int(array.max())
    if high >= rows.count or (low < 0 and rows.stored):
        raise InputError(
            f"{place}: holds the position {high if high >= rows.count else low}, and {rows.by!r} picks from "
            f"{rows.count} rows, 0 to {rows.count - 1}"
        )


def known_values(graph: Graph, dtype: str | None) -> dict[str, Array]:
    """The constants of the program whose values are known, as they are executed; `dtype` replaces floating types."""
    return {
        t.name: constant_values(t, t.contents.values, dtype)
        for t in graph.tensors
        if t.contents is not None and t.contents.values is not None
    }


def _member(file: zipfile.ZipFile, info: zipfile.ZipInfo, tensor: Tensor, place: str) -> Array:
    if info.compress_type not in _ORDINARY:
        raise InputError(f"{place}: is compressed in a way that numpy.savez does not use")
    with file.open(info) as stream:
        shape, fortran, dtype = _header(stream, place)
        if dtype.kind == "c":
            raise InputError(
                f"{place}: holds complex numbers ({dtype.name}), which no operator computes with; give real and "
                f"imaginary part as two inputs"
            )
        if dtype.kind not in KINDS or dtype.itemsize > 8:
            raise InputError(
                f"{place}: holds elements of type {dtype}, which cannot be executed; convert it to float64, "
                f"float32, float16, an integer or bool"
            )
        if shape not in (tensor.shape, tensor.source_shape):
            allowed = f"{tensor.shape}" + (
                "" if tensor.source_shape in (None, tensor.shape) else f" or {tensor.source_shape}"
            )
            raise InputError(f"{place}: has shape {shape}, the plan needs {allowed}")
        size = tensor.elements * dtype.itemsize
        data = stream.read(size + 1)
    if len(data) != size:
        raise InputError(
            f"{place}: holds {'more' if len(data) > size else len(data)} "
            f"bytes{' than' if len(data) > size else ', not'} the {size} of its header"
        )
    array = np.frombuffer(data, dtype=dtype).astype(dtype.newbyteorder("="))
    return array.reshape(shape, order="F" if fortran else "C")


def _header(stream: IO[bytes], place: str) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, order and element type of an array in NumPy's format."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        return tuple(int(n) for n in shape), bool(fortran), dtype
    except (
        ValueError,
        EOFError,
        TypeError,
        OverflowError,
        RecursionError,
        MemoryError,
        SyntaxError,
        tokenize.TokenError,
    ) as error:
        raise InputError(
            f"{place}: is not an array in NumPy's format: "
            f"{str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
        ) from None
