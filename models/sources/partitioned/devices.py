"""Compiles a module of StableHLO for host devices, and runs it there: what every device has is what a text is compared
with, as a program is.

A module of one device's own program, as XLA's partitioner leaves it, runs as so many replicas, each with the tensors
that it is given.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ...equality.captured import Unreadable
from ..jax.ir import Module
from ..jax.original import PLAIN
from .hlo import Tiles
from .shardings import ordered_groups

Plain = NDArray[np.generic]
PARTITIONED: Final = "after_spmd-partitioning"
"""What XLA calls the program that its partitioner leaves, among those that it writes down."""
DUMPED: Final = (
    ("xla_dump_hlo_pass_re", "spmd-partitioning"),
    ("xla_dump_hlo_as_proto", True),
    ("xla_dump_hlo_as_text", True),
)
"""What XLA writes down, beside `xla_dump_to`."""


def require_devices(many: int) -> None:
    """Raises `Unreadable` where JAX has fewer devices."""
    import jax

    if jax.device_count() < many:
        raise Unreadable(
            f"JAX has {jax.device_count()} devices, and {many} are needed: set"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={many} and JAX_PLATFORMS=cpu before JAX is imported"
        )


def parse_module(text: str | bytes) -> Module:
    """A module of StableHLO.  Raises `Unreadable` with the line."""
    import jax

    ir = import_module("jaxlib.mlir.ir")

    context = jax.jit(lambda: 0).lower().compiler_ir("stablehlo").context  # knows all dialects that JAX has
    try:
        return cast("Module", ir.Module.parse(text, context))
    except Exception as error:
        raise Unreadable(f"is no module of StableHLO: {str(error)[:500]}") from error


@dataclass(frozen=True)
class Partitioned:
    """The module of one device that XLA's partitioner made, the groups of which it does not say the order (StableHLO
    drops it), and its text.
    """

    module: Module
    ordered: dict[int, tuple[tuple[int, ...], ...]]
    text: str


def partitioned_in(folder: str) -> Partitioned:
    """What XLA wrote down in a folder.  Raises `Unreadable` where it did not."""
    from jax.extend import mlir

    found = sorted(f for f in Path(folder).iterdir() if PARTITIONED in f.name and f.suffix == ".pb")
    if not found:
        raise Unreadable("XLA did not write down what its partitioner made of the program")
    data = found[-1].read_bytes()
    said = Path(str(found[-1]).removesuffix(".hlo.pb") + ".txt").read_text(encoding="utf-8")
    return Partitioned(parse_module(mlir.hlo_to_stablehlo(_first_field(data))), ordered_groups(said), said)


def _first_field(data: bytes) -> bytes:
    """The module in an `HloProto`: the message of its field 1.

    >>> _first_field(bytes([10, 3]) + b"abc")
    b'abc'
    """
    size, shift, at = 0, 0, 1
    if data[:1] != b"\n":
        raise Unreadable("XLA wrote down something else than an HloProto")
    while True:
        size, shift, at = size | (data[at] & 127) << shift, shift + 7, at + 1
        if not data[at - 1] & 128:
            return data[at : at + size]


class Compiled:
    """A module compiled for the first devices, as many as `ranks`: by XLA's partitioner, where `free` says of which
    arguments and results no sharding is said, and `shardy` whether the module says shardings in its words; or where
    `free` is None as so many replicas.  Raises `Unreadable` where XLA refuses it.
    """

    def __init__(
        self,
        module: str | bytes,
        ranks: int,
        free: tuple[Sequence[bool], Sequence[bool]] | None = None,
        shardy: bool = False,
    ) -> None:
        import jax

        xla = import_module("jaxlib.xla_client")
        self.ranks, self.devices = ranks, jax.devices()[:ranks]
        options = xla.CompileOptions()
        shape = (ranks, 1) if free is None else (1, ranks)
        build = options.executable_build_options
        options.num_replicas, options.num_partitions = shape
        build.num_replicas, build.num_partitions = shape
        options.device_assignment = xla.DeviceAssignment.create(np.arange(ranks).reshape(shape))
        build.device_assignment = options.device_assignment
        split = free is not None and ranks > 1
        build.use_spmd_partitioning, build.use_shardy_partitioner = split, split and shardy
        if split and free is not None:  # as `jit` leaves to XLA what nothing is said of
            build.allow_spmd_sharding_propagation_to_parameters = list(free[0])
            build.allow_spmd_sharding_propagation_to_output = list(free[1])
        self.partitioned: Partitioned | None = None
        with tempfile.TemporaryDirectory() as folder:
            options.env_option_overrides = [*PLAIN.items(), ("xla_dump_to", folder), *DUMPED]
            try:
                self._made: Any = self.devices[0].client.compile_and_load(
                    module, xla.DeviceList(tuple(self.devices)), options
                )
            except Exception as error:
                raise Unreadable(f"XLA does not compile it: {str(error)[:500]}") from error
            if split:
                self.partitioned = partitioned_in(folder)

    def lies(self, outputs: bool) -> list[Tiles]:
        """How XLA cuts arguments, or results."""
        found = self._made.get_output_shardings() if outputs else self._made.get_parameter_shardings()
        return [_tiles(s) for s in found or ()]

    def run(self, given: Sequence[Sequence[Plain]]) -> list[list[Plain]]:
        """What every device has of every result; `given`: of every argument what each device has."""
        import jax
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        mesh = Mesh(np.array(self.devices), ("rank",))
        arrays = []
        with jax.enable_x64(True):
            for column in given:
                shape = column[0].shape
                spec = P("rank") if shape else P()
                whole = (self.ranks * shape[0], *shape[1:]) if shape else ()
                pieces = [jax.device_put(np.asarray(a), d) for a, d in zip(column, self.devices, strict=True)]
                arrays.append(jax.make_array_from_single_device_arrays(whole, NamedSharding(mesh, spec), pieces))
            try:
                made = self._made.execute_sharded(arrays).disassemble_into_single_device_arrays()
                return [[np.asarray(a) for a in row] for row in made]
            except jax.errors.JaxRuntimeError as error:
                raise Unreadable(f"does not run on {self.ranks} devices: {str(error)[:500]}") from error


def _tiles(said: Any) -> Tiles:
    """A sharding of XLA's, of its message `OpSharding`."""
    kind = str(said.type).rpartition(".")[2]
    if kind == "REPLICATED":
        return Tiles((), ())
    if kind != "OTHER" or any(str(t).rpartition(".")[2] != "REPLICATED" for t in said.last_tile_dims):
        raise Unreadable(f"a sharding that is not known here: {str(said)[:200]}")
    blocks = tuple(int(n) for n in said.tile_assignment_dimensions)
    devices = [int(n) for n in said.tile_assignment_devices]
    if not devices:
        sizes, turned = list(said.iota_reshape_dims), list(said.iota_transpose_perm)
        devices = np.arange(prod(sizes)).reshape(sizes).transpose(turned).reshape(-1).tolist()
    extra = int(said.replicate_on_last_tile_dim) or len(said.last_tile_dims)
    return Tiles(blocks, tuple(devices), extra)


def as_replicas(text: str, ordered: Mapping[int, tuple[tuple[int, ...], ...]]) -> str:
    """A module of one device's own program as one of a replica: groups of devices are groups of replicas then, with the
    same numbers; `ordered`: groups whose order the module does not say, by channel.  XLA's partitioner, which does not
    read its own results, has nothing to do.
    """

    def in_order(found: re.Match[str]) -> str:
        groups = ordered.get(int(found[1]))
        if groups is None:
            return found[0]
        return f"replica_groups = dense<{[list(g) for g in groups]}> : tensor<{len(groups)}x{len(groups[0])}xi64>"

    text = _MESH_GROUPS.sub(in_order, text)
    text = re.sub(r"channel_handle = #(?:stablehlo|mhlo)\.channel_handle<[^>]*>,? ?", "", text)
    text = re.sub(r",? ?use_global_device_ids", "", text).replace("stablehlo.partition_id", "stablehlo.replica_id")
    text = re.sub(r"mhlo\.sharding = \"[^\"]*\"", "", text)
    return _BITCAST.sub(_moved, text)


_MESH_GROUPS: Final = re.compile(
    r"channel_handle = #stablehlo\.channel_handle<handle = (\d+), type = \d+>,"
    r" replica_groups = #stablehlo\.replica_group_mesh_axes<mesh = @[\w.$-]+, axes = \[[^\]]*\]>"
)
_BITCAST: Final = re.compile(
    r"(%[\w#:]+) = mhlo\.bitcast (%[\w#]+)"
    r'(?: \{((?:[^}"]|"[^"]*")*)\})?'
    r" : \((tensor<[^>]*>)\) -> (tensor<[^>]*>)"
)


def _moved(found: re.Match[str]) -> str:
    """A bitcast, which XLA compiles behind its last passes only, as a transpose, a reshape and a transpose."""
    name, given, said, before, after = found.groups()
    kind = before.rpartition("x")[2]
    lies = {
        k: [int(n) for n in v.split(",")][::-1]
        for k, v in re.findall(r"(\w+)_layout = dense<\[?([\d, ]*)\]?>", said or "")
        if v
    }
    shapes = [[int(n) for n in t.removeprefix("tensor<").split("x")[:-1]] for t in (before, after)]
    first, last = (lies.get(k, list(range(len(s)))) for k, s in zip(("source", "result"), shapes, strict=True))
    turned = [[shapes[0][d] for d in first], [shapes[1][d] for d in last]]
    types = [f"tensor<{''.join(f'{n}x' for n in t)}{kind}" for t in turned]
    back = [last.index(d) for d in range(len(last))]
    one, two = (f"%{what}_{name[1:].replace('#', '_')}" for what in ("turned", "flat"))
    return "\n".join(
        [
            f"{one} = stablehlo.transpose {given}, dims = {first} : ({before}) -> {types[0]}",
            f"{two} = stablehlo.reshape {one} : ({types[0]}) -> {types[1]}",
            f"{name} = stablehlo.transpose {two}, dims = {back} : ({types[1]}) -> {after}",
        ]
    )
