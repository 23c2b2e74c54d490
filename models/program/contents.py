"""What a constant input of a program holds: a digest in the graph, the values beside it.

    digest = sha256 over  element type, newline, elements in row-major order, little-endian

The digest is part of the graph's identity; the values are not, and may be missing: a plan needs their shape alone, a
run all of them.  Beside a graph file, `graph.json.constants` holds them: a zip with a member per digest.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ..files.input import regular
from ..files.output import open_output

if TYPE_CHECKING:
    from .graph import Graph, Tensor

Values = npt.NDArray[np.generic]

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DATE: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Contents:
    """`digest`: see the module docstring.  `values`: the elements, flat, or None where they are not at hand; two
    contents are equal where their digests are."""

    digest: str
    values: Values | None = field(default=None, compare=False, repr=False)


def stored_type(dtype: str) -> np.dtype[np.generic]:
    """The element type in files; bfloat16, which NumPy lacks, as float32.

    >>> stored_type("bfloat16").name, stored_type("int64").str
    ('float32', '<i8')
    """
    return np.dtype("float32" if dtype == "bfloat16" else dtype).newbyteorder("<")


def contents_of(array: Values, dtype: str) -> Contents:
    """Contents of an array as a tensor of element type `dtype`.

    >>> contents_of(np.zeros((2, 3)), "float32") == contents_of(np.zeros(6), "float32")
    True
    """
    flat = np.ascontiguousarray(array).reshape(-1).astype(stored_type(dtype))
    return Contents(_digest(flat.tobytes(), dtype), flat)


def decode_values(tensor: Tensor, data: bytes) -> Values:
    """The elements of a constant from bytes.  Raises ValueError if they are not those of its digest."""
    kind = stored_type(tensor.dtype)
    if len(data) != tensor.elements * kind.itemsize:
        raise ValueError(f"{len(data)} bytes, where {tensor.elements} elements of {tensor.dtype} are stored")
    if tensor.contents is None or _digest(data, tensor.dtype) != tensor.contents.digest:
        raise ValueError("other contents than its digest says")
    return np.frombuffer(data, kind)


def _digest(data: bytes, dtype: str) -> str:
    return hashlib.sha256(dtype.encode() + b"\n" + data).hexdigest()


def constants(graph: Graph) -> dict[str, Tensor]:
    """Digest -> a tensor of that digest, in the graph's order."""
    out: dict[str, Tensor] = {}
    for t in graph.tensors:
        if t.contents is not None and (t.contents.digest not in out or out[t.contents.digest].contents is None):
            out[t.contents.digest] = t
    return out


def encode_contents(graph: Graph) -> dict[str, bytes]:
    """Digest -> bytes of the constants whose values are at hand."""
    return {
        digest: t.contents.values.tobytes()
        for digest, t in constants(graph).items()
        if t.contents is not None and t.contents.values is not None
    }


def fill_contents(graph: Graph, found: Mapping[str, bytes]) -> Graph:
    """The graph with the values of its constants, of which some may be missing.  Raises ValueError naming the first
    constant whose bytes are not its own."""
    values: dict[str, Values] = {}
    for digest, t in constants(graph).items():
        if digest in found:
            try:
                values[digest] = decode_values(t, found[digest])
            except ValueError as error:
                raise ValueError(f"constant {t.name!r} ({digest[:16]}..): {error}") from None
    return replace(graph, tensors=tuple(_with(t, values) for t in graph.tensors)) if values else graph


def _with(t: Tensor, values: Mapping[str, Values]) -> Tensor:
    if t.contents is None or t.contents.digest not in values:
        return t
    return replace(t, contents=replace(t.contents, values=values[t.contents.digest]))


def beside(path: Path) -> Path:
    """The file of the constants of a graph file."""
    return path.with_name(path.name + ".constants")


def write_beside(path: Path, graph: Graph) -> Path | None:
    """Write the constants of a graph beside its file; None where it has none."""
    data = encode_contents(graph)
    if not data:
        return None
    with open_output(beside(path)) as file, zipfile.ZipFile(file, "w") as archive:
        for digest in sorted(data):
            archive.writestr(zipfile.ZipInfo(digest, _DATE), data[digest])
    return beside(path)


def read_beside(path: Path, graph: Graph) -> Graph:
    """The graph with the constants that lie beside its file.  Raises ValueError naming a file that is broken; a
    missing one leaves the constants without values."""
    wanted, place = constants(graph), beside(path)
    if not wanted or not place.exists():
        return graph
    try:
        with zipfile.ZipFile(regular(place)) as archive:
            sizes = {i.filename: i.file_size for i in archive.infolist() if i.compress_type == zipfile.ZIP_STORED}
            fitting = {d for d, t in wanted.items() if sizes.get(d) == t.elements * stored_type(t.dtype).itemsize}
            return fill_contents(graph, {d: archive.read(d) for d in fitting})
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{place}: {error}; write it again with 'shardproof import', or remove it") from None
