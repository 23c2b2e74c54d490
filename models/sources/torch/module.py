"""Imports a PyTorch module that a program holds; what is read is a copy of it without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...program.graph import Graph
from ...text import InputError
from ..building.original import Original
from ..building.stated import with_constants
from .importer import convert, with_gradients
from .original import original_of
from .program import build
from .shadow import is_module, without_weights

if TYPE_CHECKING:
    from ..load import Attention


def load_module(
    model: object,
    inputs: object,
    tell: Callable[[str], None],
    attention: Attention | None,
    original: Callable[[Original], None],
    trained: bool = False,
) -> Graph:
    """The graph of a module with its example inputs; `tell`, `original` and `trained` as of `load_model`.

    Raises `InputError` for what is no module or cannot be copied, and the errors of the importer.
    """
    if not is_module(model):
        raise InputError(
            f"a {type(model).__name__} is no model; give a name or file, a Graph, a function decorated with "
            f"@shardproof.program or with inputs=, or a PyTorch module with inputs="
        )
    if inputs is None:
        raise InputError("a PyTorch module needs inputs=, a tensor, a tuple of tensors or a dictionary")
    try:
        hollow = without_weights(model)
    except Exception as error:  # whatever the module's own parts raise
        raise InputError(
            f"the {type(model).__name__} cannot be copied ({type(error).__name__}: {str(error)[:200]}); give a file "
            f"with a function that makes it, FILE.py:NAME"
        ) from error
    program = build(lambda: (hollow, inputs), type(model).__name__, attention=attention != "matrices")
    found = convert(program)
    for note in found.notes:
        tell(note)
    original(original_of(program, found.results, lambda: (model, inputs), convert))
    return with_constants(with_gradients(found, attention, trained), found.stated)
