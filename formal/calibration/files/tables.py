"""Reads tables of measured times, CSV or JSON (a list of objects, or columns and rows): collectives,
products, steps.

    collectives   operation or collective, ranks, bytes (as nccl-tests count them; or elements and dtype), a time;
                  perhaps nodes (or nodes_spanned, ranks_per_node), groups
    products      m, n, k, dtype, a time; perhaps b or batch, which must be 1
    steps         gpus, global_batch, micro_batch, hidden, heads, layers, seq, tp, dp, pp, a time; perhaps recompute
                  (full or none, which is also meant where nothing is said), dtype, vocabulary
    a time        the first of seconds, s, ms, us, ns, time_us, .., median_ms, step_s, iteration_ms, out_of_place_ns

`all_gather_into_tensor` and `reduce_scatter_tensor`, torch's names, count bytes of the input.  Rows whose time is empty
or not finite are left out and counted.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ....models.cost.collective_times import Operation
from ....models.text import InputError
from .observation import WIDTH, Collective, Observation, Product, Step, dtype_of

MAX_ROWS: Final = 200_000

_TIMES: Final = {
    "seconds": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "time_s": 1.0,
    "time_ms": 1e-3,
    "time_us": 1e-6,
    "median_s": 1.0,
    "median_ms": 1e-3,
    "mean_s": 1.0,
    "mean_ms": 1e-3,
    "step_s": 1.0,
    "step_ms": 1e-3,
    "iteration_s": 1.0,
    "iteration_ms": 1e-3,
    "out_of_place_ns": 1e-9,
    "table_ms": 1e-3,
}
_SHAPE: Final = ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp")
_NO_TENSOR: Final = ("fp8", "tf32")
"""How a product may be computed, but no element type of ours: such rows are left out."""
_TORCH: Final = {
    "all_gather_into_tensor": Operation.ALL_GATHER,
    "reduce_scatter_tensor": Operation.REDUCE_SCATTER,
    "all_to_all_single": Operation.ALL_TO_ALL,
    "all_to_all": Operation.ALL_TO_ALL,
    "sendrecv": Operation.SEND_RECV,
}

Line = Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """What a file held; `skipped`: rows without a finite time, `machines`: columns that tell machines apart."""

    rows: tuple[Observation, ...]
    skipped: int


def csv_lines(text: str, place: str) -> list[tuple[str, Line]]:
    """(place, cells) of every line.  Raises `InputError` naming the line."""
    reader = csv.DictReader(io.StringIO(text))
    out: list[tuple[str, Line]] = []
    try:
        for line in reader:
            here = f"{place}, line {reader.line_num}"
            if None in line or any(v is None for v in line.values()):
                raise InputError(f"{here}: has more or fewer fields than the header")
            if len(out) >= MAX_ROWS:
                raise InputError(f"{place}: more than {MAX_ROWS} lines; split the file")
            out.append((here, {k.strip(): v.strip() for k, v in line.items()}))
    except csv.Error as error:
        raise InputError(f"{place}, line {reader.line_num}: is not CSV text: {error}") from None
    return out


def json_lines(data: object, place: str) -> list[tuple[str, Line]]:
    """Rows of a JSON table: [{column: value}], {"rows": [..]}, or {"columns": [..], "nodes" | "rows": [[..]]}."""
    rows: object = data
    columns: object = None
    if isinstance(data, dict):
        columns = data.get("columns")
        rows = data.get("rows", data.get("nodes"))
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise InputError(
            f"{place}: holds no table; write a list of objects, one a row, or columns and rows (at most {MAX_ROWS})"
        )
    out: list[tuple[str, Line]] = []
    for number, row in enumerate(rows):
        here = f"{place}, row {number}"
        if isinstance(row, list) and isinstance(columns, list) and len(row) <= len(columns):
            row = dict(zip(map(str, columns), [*row, *[None] * (len(columns) - len(row))], strict=True))
        if not isinstance(row, dict):
            wanted = f" nor a list of {len(columns)} cells" if isinstance(columns, list) else ""
            raise InputError(f"{here}: is no object{wanted}")
        more = row.get("more")
        if isinstance(more, dict):  # a graph of operators: what only some of them have
            row = {**row, **more}
            row = {**row, "collective": str(row.get("op")), "bytes": row.get("in_bytes", row.get("bytes"))}
        if "kind" in row and "op" in row and row["kind"] != "collective":  # operators of a graph, without a time
            continue
        out.append((here, {str(k): _cell(v) for k, v in row.items()}))
    return out


def _cell(value: object) -> str:
    return "" if value is None or isinstance(value, list | dict) else str(value)


def observations(lines: Sequence[tuple[str, Line]], place: str, operation: Operation | None, node: int) -> Table:
    """The rows of a table; `node`: devices of a node, where a table says only how many ranks there are."""
    if not lines:
        raise InputError(f"{place}: holds no row")
    columns = lines[0][1].keys()
    time = next((c for c in _TIMES if c in columns), None)
    if time is None:
        raise InputError(
            f"{place}: has the columns {', '.join(columns)[:200]}, and none of them is a time; name one of "
            f"{', '.join(_TIMES)}"
        )
    collective = {"operation", "collective"} & columns or (operation is not None and "ranks" in columns)
    out, skipped = [], 0
    for here, cells in lines:
        text = cells.get(time, "")
        seconds = _number(text, f"{here}, {time}") * _TIMES[time] if text else math.nan
        if not math.isfinite(seconds) or seconds <= 0:
            skipped += 1
            continue
        what: Collective | Product | Step | None
        if collective:
            what = _collective(cells, here, operation, node)
        elif {"m", "n", "k", "dtype"} <= columns:
            what = _product(cells, here)
        elif set(_SHAPE) <= columns:
            what = _step(cells, here)
        else:
            raise InputError(
                f"{place}: has the columns {', '.join(columns)[:200]}, which are no table of collectives (operation, "
                f"ranks, bytes), of products (m, n, k, dtype) or of steps ({', '.join(_SHAPE)})"
                + ("; give --operation NAME if all rows are of one collective" if "ranks" in columns else "")
            )
        if what is None:
            skipped += 1
            continue
        out.append(Observation(what, seconds, here, tuple(cells.items())))
    if not out:
        raise InputError(f"{place}: none of its {len(lines)} rows has a finite time that can be priced")
    return Table(tuple(out), skipped)


def _collective(cells: Line, here: str, operation: Operation | None, node: int) -> Collective | None:
    name = cells.get("operation") or cells.get("collective") or ""
    low = name.lower().removesuffix(".default").removesuffix("_out")
    try:
        kind = _TORCH.get(low) or (Operation(low) if low else operation)
    except ValueError:
        kind = None
    if kind is None:
        raise InputError(f"{here}: {name[:40]!r} is no collective; known: {', '.join(Operation)}")
    ranks = _whole(cells, "ranks", here)
    if ranks < 2:  # a launch, no collective
        return None
    if cells.get("nodes") or cells.get("nodes_spanned"):
        nodes = _whole(cells, "nodes" if cells.get("nodes") else "nodes_spanned", here)
    elif cells.get("ranks_per_node"):
        nodes = max(1, ranks // _whole(cells, "ranks_per_node", here))
    else:
        nodes = -(-ranks // node) if ranks > node else 1
    if cells.get("bytes"):
        size = _whole(cells, "bytes", here)
    else:
        size = _whole(cells, "elements", here) * WIDTH[_dtype(cells.get("dtype", ""), here)]
    if size == 0:
        return None
    if low == "all_gather_into_tensor":
        size *= ranks
    if ranks % nodes:
        raise InputError(f"{here}: {ranks} ranks on {nodes} nodes are not equally many on each")
    groups = _whole(cells, "groups", here) if cells.get("groups") else 1
    sharing = max(1, min(groups, node * nodes // ranks)) if nodes > 1 else 1
    return Collective(kind, ranks, nodes, size, sharing)


def _product(cells: Line, here: str) -> Product | None:
    """None for types that no tensor of a plan has."""
    m, n, k = (_whole(cells, c, here) for c in "mnk")
    if cells["dtype"].lower() in _NO_TENSOR:
        return None
    together = next((c for c in ("b", "batch") if cells.get(c, "1") != "1"), None)
    if together is not None:
        raise InputError(
            f"{here}, {together}: {cells[together][:40]!r} products at once; choose those of one: --where {together}=1"
        )
    return Product(m, n, k, _dtype(cells["dtype"], here))


def _step(cells: Line, here: str) -> Step:
    sizes = {c: _whole(cells, c, here) for c in _SHAPE}
    said = cells.get("recompute", "").lower()
    recompute = {"1": 1, "full": 1, "true": 1, "0": 0, "": 0, "none": 0, "false": 0, "selective": 0}.get(said)
    if recompute is None:
        raise InputError(f"{here}, recompute: {said[:40]!r} is none of full, selective, none, 1, 0")
    dtype = _dtype(cells["dtype"], here) if cells.get("dtype") else "bfloat16"
    vocabulary = _whole(cells, "vocabulary", here) if cells.get("vocabulary") else 50304
    return Step(**sizes, recompute=recompute, vocabulary=vocabulary, dtype=dtype)


def _dtype(text: str, here: str) -> str:
    found = dtype_of(text)
    if found is None:
        raise InputError(f"{here}, dtype: {text[:40]!r} is none of {', '.join(WIDTH)}")
    return found


def _whole(cells: Line, column: str, here: str) -> int:
    text = cells.get(column, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError(f"{here}, {column}: {text[:40]!r} is not a whole number")
    return int(text)


def _number(text: str, here: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{here}: {text[:40]!r} is not a number") from None
