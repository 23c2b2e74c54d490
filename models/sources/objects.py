"""Reads a model that a program holds: a name or a file, a graph, a NumPy function, a PyTorch module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..program.graph import Graph
from ..text import InputError
from .building.original import Original
from .load import Attention, load_model, with_attention


def graph_of_object(
    model: object,
    inputs: object,
    batch: int | None,
    attention: Attention | None,
    tell: Callable[[str], None],
    original: Callable[[Original], None],
    trained: bool,
) -> Graph:
    """The graph of whatever `model` is, with its example `inputs`; `tell`, `original` and `trained` as of `load_model`.

    Raises `InputError` for what is no model or does not fit the other arguments, and the errors of the frontends.
    """
    if isinstance(model, Graph | str | Path) and inputs is not None:
        raise InputError("inputs are those of a function or a module; a graph, a name and a file have their shapes")
    if isinstance(model, Graph):
        if batch is not None:
            raise InputError("batch applies to zoo names and files; a graph has its sizes already")
        return with_attention(model.check(), attention)
    if isinstance(model, str | Path):
        return load_model(str(model), batch, tell, attention, None, original, trained)
    if batch is not None:
        raise InputError("batch applies to zoo names and files; a function or a module has its shapes already")
    from .torch.shadow import is_module

    if not is_module(model) and callable(model):
        from .numpy.program import is_numpy_program, shapes_of
        from .numpy.trace import graph_of

        if inputs is not None:
            graph = graph_of(model, arguments=shapes_of(model, inputs), original=original, tell=tell)
            return with_attention(graph, attention)
        if is_numpy_program(model):
            return with_attention(graph_of(model, original=original, tell=tell), attention)
    from .torch.module import load_module

    return load_module(model, inputs, tell, attention, original, trained)
