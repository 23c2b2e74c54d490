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
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ...equality.captured import Captured, Stated, Unreadable
from ..jax.ir import Module
from ..jax.original import PLAIN
from .collectives import Place
from .devices import DUMPED, Partitioned, partitioned_in, require_devices
from .machine import Held, Machine, manual_everywhere, meshes_of, read_by_manual
from .ranks import Argument, place_in, rank_program
from .writer import Writer

Plain = NDArray[np.generic]
WRITE: Final = "a JAX program returns (function, (its arguments, ..)), arrays in any nesting"


def capture_one(make: Callable[..., object]) -> Captured:
    """A JAX program of one device.  Raises `Unreadable`."""
    return capture_with_arguments(make, None)[0][0]


def capture_ranks(make: Callable[..., object], ranks: int) -> list[Captured]:
    """A JAX program of many devices, as every rank runs it.  `make(ranks)`, or `make(rank, ranks)` where what it makes
    is the same for every rank.  Raises `Unreadable`.
    """
    return capture_with_arguments(make, ranks)[0]


def capture_with_arguments(
    make: Callable[..., object], ranks: int | None
) -> tuple[list[Captured], list[tuple[str, Plain]]]:
    """A program of one device (`ranks` None) or of all ranks; names and values of its arguments, whole ones, also of
    those that nothing reads.  Raises `Unreadable`.
    """
    if ranks is None:
        return _captured("SINGLE", make, 1, ())
    needed = [p for p in inspect.signature(make).parameters.values() if p.default is inspect.Parameter.empty]
    if len(needed) < 2:
        return _captured("DISTRIBUTED", make, ranks, (ranks,)[: len(needed)])
    texts = [str(_lowered(make(rank, ranks), "DISTRIBUTED")[0].as_text()) for rank in range(ranks)]
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise Unreadable(f"rank {rank} makes another program than rank 0: one program for all ranks is read")
    return _captured("DISTRIBUTED", make, ranks, (0, ranks))


def _captured(
    who: str, make: Callable[..., object], ranks: int, given: tuple[int, ...]
) -> tuple[list[Captured], list[tuple[str, Plain]]]:
    require_devices(ranks)
    try:
        lowered, names, leaves = _lowered(make(*given), who)
        found = _Read(who, ranks, lowered, names, leaves).programs()
        return found, list(zip(names, leaves, strict=True))
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
            self.compiled, made = _partitioned(lowered)
            self.module, self.ordered = made.module, made.ordered
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
        arguments = []
        for k, (name, leaf, sharding) in enumerate(zip(self.names, self.leaves, read_by_manual(machine), strict=True)):
            index = (slice(None),) * leaf.ndim
            if self.local:
                index = self._mine(k, leaf, rank)
            elif sharding is not None:
                index = sharding.part(leaf.shape, rank)
            arguments.append(Argument(name, leaf[index], place_in(leaf.shape, index), sharding))

        def result_of(k: int, held: Held) -> tuple[Stated, Plain]:
            out = self.results[k][1]
            index = self._place(out, held, rank)
            return place_in(out.shape, index), self._result(out, index, rank)

        return rank_program(machine, arguments, [name for name, _ in self.results], result_of)

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
            if shard.device == self.devices[rank] and place_in(out.shape, shard.index) == place_in(out.shape, index):
                return np.asarray(shard.data)
        return cast("Plain", np.asarray(out)[index])


def _partitioned(lowered: Any) -> tuple[Any, Partitioned]:
    """What runs a program, and what XLA's partitioner made of it."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile({**PLAIN, "xla_dump_to": folder, **dict(DUMPED)})
        return compiled, partitioned_in(folder)
