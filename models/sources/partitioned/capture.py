"""Writes down a JAX program for `shardproof equal`: of one device, or of all ranks of a mesh, and runs it for real.

`make()` or `make(ranks)` returns a function and the tuple of its arguments.  It is lowered to StableHLO; where all that
is split is `shard_map` the module is read as it stands, where `jit` with shardings is left to XLA's partitioner the
module behind it is read, collectives included.  The same program runs on as many host devices, and what every device
has then is compared with what was written down for its rank.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ...equality.captured import Captured, Stated, Unreadable, runs_of
from ..distributed.needed import without_waste
from ..jax.ir import Module
from ..jax.original import PLAIN
from .collectives import Place
from .machine import Held, Machine, manual_everywhere, meshes_of, read_by_manual
from .operators import made_of
from .shardings import ordered_groups
from .writer import Writer

Plain = NDArray[np.generic]
PARTITIONED: Final = "after_spmd-partitioning"
"""What XLA calls the program that its partitioner leaves, among those that it writes down."""
WRITE: Final = "a JAX program returns (function, (its arguments, ..)), arrays in any nesting"


def capture_one(make: Callable[..., object]) -> Captured:
    """A JAX program of one device.  Raises `Unreadable`."""
    return _captured("SINGLE", make, 1, ())[0]


def capture_ranks(make: Callable[..., object], ranks: int) -> list[Captured]:
    """A JAX program of many devices, as every rank runs it.  `make(ranks)`, or `make(rank, ranks)` where what it makes
    is the same for every rank.  Raises `Unreadable`.
    """
    needed = [p for p in inspect.signature(make).parameters.values() if p.default is inspect.Parameter.empty]
    if len(needed) < 2:
        return _captured("DISTRIBUTED", make, ranks, (ranks,)[: len(needed)])
    texts, found = [str(_lowered(make(rank, ranks), "DISTRIBUTED")[0].as_text()) for rank in range(ranks)], None
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise Unreadable(f"rank {rank} makes another program than rank 0: one program for all ranks is read")
    found = _captured("DISTRIBUTED", make, ranks, (0, ranks))
    return found


def _captured(who: str, make: Callable[..., object], ranks: int, given: tuple[int, ...]) -> list[Captured]:
    import jax

    if jax.device_count() < ranks:
        raise Unreadable(
            f"JAX has {jax.device_count()} devices, and {ranks} are needed: set"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={ranks} and JAX_PLATFORMS=cpu before JAX is imported"
        )
    try:
        lowered, names, leaves = _lowered(make(*given), who)
        read = _Read(who, ranks, lowered, names, leaves)
        return read.programs()
    except Unreadable as error:
        raise error if str(error).startswith(who) else Unreadable(f"{who}: {error}") from error
    except Exception as error:
        raise Unreadable(f"{who}: {type(error).__name__}: {str(error)[:500]}") from error


def _lowered(found: object, who: str) -> tuple[Any, list[str], list[Plain]]:
    """What JAX lowered; names and values of the leaves of its arguments."""
    import jax

    if not isinstance(found, tuple | list) or len(found) != 2 or not callable(found[0]):
        raise Unreadable(f"{who}: {WRITE}")
    function, arguments = found
    if not isinstance(arguments, tuple | list):
        raise Unreadable(f"{who}: the arguments are no tuple: {WRITE}")
    lower = function.lower if hasattr(function, "lower") else jax.jit(function, keep_unused=True).lower
    names, leaves = [], []
    for k, argument in enumerate(arguments):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            names.append(f"input {k}{_dotted(jax.tree_util.keystr(path))}")
            leaves.append(np.asarray(leaf))
    return lower(*arguments), names, leaves


def _dotted(path: str) -> str:
    """`['layers'][0].w` as `.layers.0.w`.

    >>> _dotted("['layers'][0].w")
    '.layers.0.w'
    """
    return "".join(f".{a or b or c}" for a, b, c in re.findall(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)", path))


class _Read:
    """One program, lowered, with the names and values of its arguments."""

    def __init__(self, who: str, ranks: int, lowered: Any, names: list[str], leaves: list[Plain]) -> None:
        import jax

        self.who, self.ranks, self.names, self.leaves = who, ranks, names, leaves
        self.module = cast("Module", lowered.compiler_ir("stablehlo"))
        attributes = cast("Any", self.module).operation.attributes
        many = int(attributes["mhlo.num_partitions"]) if "mhlo.num_partitions" in attributes else 1
        if many != ranks:
            raise Unreadable(f"is a program of {many} devices, and {ranks} are asked for")
        taken = len(Machine(self.module, Place(0, ranks, {}), Writer()).main().arguments)
        if taken != len(leaves):
            raise Unreadable(
                f"reads {taken} of {len(leaves)} arrays, and JAX leaves the others out: write jit(.., keep_unused=True)"
            )
        self.meshes, self.ordered = meshes_of(self.module), dict[int, tuple[tuple[int, ...], ...]]()
        self.local = ranks > 1 and not manual_everywhere(self.module, self.meshes)
        if self.local:
            self.compiled, self.module, self.ordered = _partitioned(lowered)
            self.meshes = meshes_of(self.module)
        else:
            self.compiled = lowered.compile(dict(PLAIN))
        self.devices = list(self.compiled.runtime_executable().local_devices())
        treedef = lowered.in_tree
        args, kwargs = jax.tree_util.tree_unflatten(treedef, leaves)
        out = self.compiled(*args, **kwargs)
        self.results = [
            (f"output{_dotted(jax.tree_util.keystr(path))}", leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(out)
        ]
        if not self.results:
            raise Unreadable("returns no array")

    def programs(self) -> list[Captured]:
        """What every rank does."""
        return [self._of(rank) for rank in range(self.ranks)]

    def _of(self, rank: int) -> Captured:
        writer = Writer(self.ranks == 1)
        machine = Machine(self.module, Place(rank, self.ranks, self.meshes, self.ordered), writer, self.local)
        arguments, inputs, placed = [], dict[str, Stated](), dict[str, Stated]()
        block = machine.main()
        for k, (name, leaf, sharding) in enumerate(zip(self.names, self.leaves, read_by_manual(machine), strict=True)):
            index = (slice(None),) * leaf.ndim
            if self.local:
                index = self._mine(k, leaf, rank)
            elif sharding is not None:
                index = sharding.part(leaf.shape, rank)
            array, inputs[name] = leaf[index], _stated(leaf.shape, index)
            shape, dtype = made_of(writer, block.arguments[k].type)
            if shape != array.shape and sharding is None:
                raise Unreadable(f"{name} has shape {array.shape} on rank {rank}, the module says {shape}")
            number = writer.source(name, "input", np.ascontiguousarray(_numbers(array)), dtype)
            arguments.append(Held(number, sharding))
        outputs, expected = [], []
        for held, (name, out) in zip(machine.run(arguments), self.results, strict=True):
            outputs.append((name, held.number))
            index = self._place(out, held, rank)
            placed[name] = _stated(out.shape, index)
            if placed[name].shape() != writer.shape(held.number):
                where = f"{placed[name].shape()} of {tuple(out.shape)} on rank {rank}"
                raise Unreadable(f"{name} is {where}, and was read as {writer.shape(held.number)}")
            expected.append(_numbers(self._result(out, index, rank)))
        program = without_waste(writer.program(outputs))
        arrays = {s.number: writer.arrays[s.number] for s in program.sources}
        if self.ranks == 1:
            inputs, placed = {}, {}
        return Captured(program, arrays, {}, tuple(expected), inputs=inputs, outputs=placed)

    def _mine(self, k: int, leaf: Plain, rank: int) -> tuple[slice, ...]:
        import jax

        shardings = jax.tree_util.tree_leaves(self.compiled.input_shardings)
        return cast("tuple[slice, ...]", shardings[k].devices_indices_map(leaf.shape)[self.devices[rank]])

    def _place(self, out: Any, held: Held, rank: int) -> tuple[slice, ...]:
        """Where the rank's output lies in the array that JAX returns."""
        if self.local:
            return cast("tuple[slice, ...]", out.sharding.devices_indices_map(out.shape)[self.devices[rank]])
        return (slice(None),) * out.ndim if held.sharding is None else held.sharding.part(out.shape, rank)

    def _result(self, out: Any, index: tuple[slice, ...], rank: int) -> Plain:
        """What the rank's device has of an output; of the whole where XLA left another part there."""
        for shard in out.addressable_shards:
            if shard.device == self.devices[rank] and _stated(out.shape, shard.index) == _stated(out.shape, index):
                return np.asarray(shard.data)
        return cast("Plain", np.asarray(out)[index])


def _stated(shape: Sequence[int], index: Sequence[slice]) -> Stated:
    """A part of an array of this shape."""
    return Stated(tuple(shape), tuple(runs_of(range(n)[cut]) for n, cut in zip(shape, index, strict=True)))


def _numbers(array: Plain) -> Plain:
    """Numbers of 16 bits as those of 32, which NumPy has."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.name in ("bfloat16", "float16") else array


def _partitioned(lowered: Any) -> tuple[Any, Module, dict[int, tuple[tuple[int, ...], ...]]]:
    """What runs a program, the module of one device that XLA's partitioner made of it, and the groups of which the
    module does not say the order: StableHLO drops it.
    """
    from jax.extend import mlir

    with tempfile.TemporaryDirectory() as folder:
        written = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": True,
        }
        compiled = lowered.compile({**PLAIN, **written})
        found = sorted(f for f in Path(folder).iterdir() if PARTITIONED in f.name and f.suffix == ".pb")
        if not found:
            raise Unreadable("XLA did not write down what its partitioner made of the program")
        data = found[-1].read_bytes()
        said = Path(str(found[-1]).removesuffix(".hlo.pb") + ".txt").read_text(encoding="utf-8")
    return compiled, parse_module(mlir.hlo_to_stablehlo(_first_field(data))), ordered_groups(said)


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


def parse_module(text: str | bytes) -> Module:
    """A module of StableHLO.  Raises `Unreadable` with the line."""
    import jax

    ir = import_module("jaxlib.mlir.ir")

    context = jax.jit(lambda: 0).lower().compiler_ir("stablehlo").context  # knows all dialects that JAX has
    try:
        return cast("Module", ir.Module.parse(text, context))
    except Exception as error:
        raise Unreadable(f"is no module of StableHLO: {str(error)[:500]}") from error
