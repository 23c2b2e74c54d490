"""Keeps what DTensor chooses for an operator from one rank that is written down to the next.

DTensor weighs all placements that the tensors of an operator can have, which on a mesh of three dimensions takes tens
of milliseconds, and its caches are emptied between ranks (`past.forget_ranks`).  The choice hangs on the operator, its
numbers, shapes and placements, on the sizes of the mesh, and on who weighs them (a job may register a strategy of its
own for an operator that DTensor knows): ranks of a job must all make the same.  It is kept as placements, and what a
rank does with it (its mesh, sizes of its parts) is done anew.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final

MOST: Final = 1 << 14
"""Choices that are kept; a step of training of one stage has two hundred."""
_kept: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}
"""What a choice hangs on -> who listed the placements, and the choice."""


@contextmanager
def keeping_choices() -> Iterator[None]:
    """While it is entered, what DTensor chose before is not weighed again; nothing if PyTorch has other inner parts."""
    inner: Any = sys.modules.get("torch.distributed.tensor._sharding_prop")
    select = getattr(inner, "_select_min_cost_strategy", None)
    if inner is None or select is None:
        yield
        return
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    weigh = propagator.propagate_op_sharding_non_cached

    def propagate(schema: Any) -> Any:
        key, listed = _key(schema), tuple(table.get(schema.op) for table in _tables(propagator))
        if key in _kept and all(a is b for a, b in zip(listed, _kept[key][0], strict=True)):
            with _told(propagator, schema, _kept[key][1]):
                return weigh(schema)
        chosen = list[Any]()

        def noting(strategy: Any, of: Any = None) -> Any:
            found = select(strategy, of)
            chosen.append(found if of is schema else None)
            return found

        before = inner._select_min_cost_strategy
        inner._select_min_cost_strategy = noting
        try:
            found = weigh(schema)
        finally:
            inner._select_min_cost_strategy = before
        if key is not None and len(chosen) == 1 and chosen[0] is not None:
            if len(_kept) >= MOST:
                _kept.clear()
            _kept[key] = listed, chosen[0]
        return found

    propagator.propagate_op_sharding_non_cached = propagate
    try:
        yield
    finally:
        del propagator.propagate_op_sharding_non_cached


@contextmanager
def _told(propagator: Any, schema: Any, chosen: Any) -> Iterator[None]:
    """While it is entered, an operator has the one choice that is kept, on the mesh of the rank that runs."""
    from torch.distributed.tensor._op_schema import OpSpec, OpStrategy

    mesh, op = schema.args_spec[0].mesh, schema.op
    mine = OpSpec(_on(mesh, chosen.output_specs), _on(mesh, chosen.input_specs), chosen.redistribute_cost)
    tables = _tables(propagator)
    before = [table.pop(op, None) for table in tables]
    tables[1][op] = lambda schema: OpStrategy([mine])
    try:
        yield
    finally:
        del tables[1][op]
        for table, function in zip(tables, before, strict=True):
            if function is not None:
                table[op] = function


def _tables(propagator: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Operator -> the function that lists its placements, of one dimension of a mesh, and of all."""
    return propagator.op_single_dim_strategy_funcs, propagator.op_strategy_funcs


def _key(schema: Any) -> Hashable:
    """All that a choice hangs on but who lists the placements; None where something cannot be compared, or no tensor is
    there.
    """
    try:
        specs = schema.args_spec
        key = (schema.op, _words(schema.args_schema), _words(tuple(sorted(schema.kwargs_schema.items()))))
        hash(key)
    except (AttributeError, TypeError):
        return None
    return key if specs and len({id(s.mesh) for s in specs}) == 1 else None


def _on(mesh: Any, specs: Any) -> Any:
    """The same placements on this mesh."""
    if specs is None:
        return None
    if isinstance(specs, tuple | list):
        return type(specs)(_on(mesh, s) for s in specs)
    found = copy.copy(specs)
    found.mesh = mesh
    return found


def _words(x: Any) -> Hashable:
    if isinstance(x, tuple | list) and not hasattr(x, "_fields"):
        return (type(x), *map(_words, x))
    if hasattr(x, "placements") and hasattr(x, "mesh"):
        of = tuple((type(p), p) for p in x.placements)
        more = getattr(x, "shard_order", None), getattr(x, "use_strided_shard_as_shard_order", None)
        return (type(x), of, x.tensor_meta, more, x.mesh.device_type, tuple(x.mesh.shape))
    found: Hashable = (type(x), x)
    return found
