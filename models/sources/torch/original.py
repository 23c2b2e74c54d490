"""Runs a PyTorch module that was imported, with numbers in the places of its weights and inputs.

The module itself runs, not what was exported of it, so that a wrong trace shows.  Dropout is off, as in what is
imported: where no part keeps statistics of its batch, the module is put into evaluation for the moment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..building.original import NoGradient, Original, Undefined, Values
from .context import Imported
from .parts import parts_of
from .program import Program, example

if TYPE_CHECKING:
    import torch


def original_of(
    program: Program,
    results: Sequence[int],
    factory: Callable[[], object],
    convert: Callable[[Program], Imported],
) -> Original:
    """The module that `factory` describes, as PyTorch runs it; `results`: which of the tensors that it returns are the
    outputs of the graph; `convert`: the importer.
    """
    import torch

    stored, given = _names(program)
    outputs = _Outputs(results, factory, stored, given)

    def execute(values: Mapping[str, Values]) -> tuple[Values, ...]:
        with torch.no_grad():
            return tuple(_array(t) for t in outputs(values)[0])

    def gradients(values: Mapping[str, Values], output: int, weights: Values) -> Mapping[str, Values]:
        trained = set(program.exported.graph_signature.parameters)
        names = [n for n in stored if n in values and n in trained and values[n].dtype.kind == "f"]
        found, leaves = outputs(values, names)
        y = found[output]
        if not y.requires_grad:
            raise Undefined("the output depends on no weight")
        try:
            slopes = torch.autograd.grad((y * _tensor(weights, y)).sum(), leaves, allow_unused=True)
        except RuntimeError as error:  # an operator of the user's own without a gradient; the graph has one
            raise NoGradient(f"gradients are not: {' '.join(str(error).split())[:120]}") from error
        return {n: _array(g) for n, g in zip(names, slopes, strict=True) if g is not None}

    return Original(
        f"PyTorch {torch.__version__.partition('+')[0]}",
        execute,
        gradients,
        lambda: parts_of(program, convert),
        False,
        corners=True,
    )


@dataclass
class _Outputs:
    """What the module returns for numbers; it is made when it is first asked, and asked twice whether it draws random
    numbers.  `stored`, `given`: names of its weights and of its inputs.
    """

    results: Sequence[int]
    factory: Callable[[], object]
    stored: Sequence[str]
    given: Sequence[str]
    drawn: bool = True
    made: tuple[torch.nn.Module, tuple[object, ...], dict[str, object]] | None = None

    def __call__(
        self, values: Mapping[str, Values], slopes: Sequence[str] = ()
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(the results, the weights `slopes`, which require gradients).  Raises `Undefined`."""
        import torch

        try:
            found, leaves = self._run(values, slopes)
        except Undefined:
            raise
        except Exception as error:  # whatever the module's own parts raise
            raise Undefined(f"PyTorch refuses the numbers: {type(error).__name__}: {str(error)[:200]}") from error
        if len(found) > 1 and any(not torch.allclose(a, b, equal_nan=True) for a, b in zip(*found, strict=True)):
            raise Undefined("it draws random numbers")
        self.drawn = False  # what draws none once draws none
        return found[0], leaves

    def _run(
        self, values: Mapping[str, Values], slopes: Sequence[str]
    ) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
        import torch
        from torch.func import functional_call
        from torch.utils._pytree import tree_flatten, tree_unflatten

        if self.made is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.made = example(self.factory)
        module, args, kwargs = self.made
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        weights = {n: _tensor(values[n], own[n]) for n in self.stored if n in values and n in own}
        plain = {n: values[n] for n in self.stored if n in values and n not in own}
        weights |= {n: b.clone() for n, b in module.named_buffers() if n not in weights}  # it may count in them
        for n in slopes:
            weights[n].requires_grad_(True)
        leaves, spec = tree_flatten((args, kwargs))
        if len(leaves) != len(self.given):
            raise Undefined("its inputs are not those that were exported")
        filled = [_tensor(values[n], leaf) if n in values else leaf for n, leaf in zip(self.given, leaves, strict=True)]
        args, kwargs = tree_unflatten(filled, spec)
        with warnings.catch_warnings(), _without_dropout(module), _replaced(module, plain):
            warnings.simplefilter("ignore")
            found = []
            for seed in range(1 + self.drawn):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    made = tree_flatten(functional_call(module, weights, args, kwargs))[0]
                found.append([made[k] for k in self.results])
        return found, [weights[n] for n in slopes]


def _names(program: Program) -> tuple[list[str], list[str]]:
    """Weights of the graph by their names; for every leaf of the example inputs, the input of the graph."""
    from torch.export.graph_signature import InputKind

    exported = program.exported
    tied: dict[int, str] = {}
    stored: list[str] = []
    given: list[str] = []
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(placeholders, exported.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            given.append(node.name)
        elif spec.target is not None:
            tensor = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
            name = spec.target if tensor is None else tied.setdefault(id(tensor), spec.target)
            stored += [name] if name not in stored else []
    return stored, given


@contextmanager
def _without_dropout(module: torch.nn.Module) -> Iterator[None]:
    """Everything that drops at random is off; what keeps statistics of its batch goes on."""
    import torch

    parts = list(module.modules())
    modes = [(p, p.training) for p in parts]
    batches = any(p.training and getattr(p, "running_mean", None) is not None for p in parts)
    chances = [(p, p.p) for p in parts if isinstance(p, torch.nn.modules.dropout._DropoutNd)]
    try:
        for p, _ in chances:
            p.p = 0.0
        for p, _ in modes:
            p.training = p.training and batches
        yield
    finally:
        for p, chance in chances:
            p.p = chance
        for p, mode in modes:
            p.training = mode


@contextmanager
def _replaced(module: torch.nn.Module, plain: Mapping[str, Values]) -> Iterator[None]:
    """Tensors that are neither parameters nor buffers, attributes of the module, have other values for the moment."""
    places = []
    for name, array in plain.items():
        path, _, last = name.rpartition(".")
        try:
            part = module.get_submodule(path)
        except AttributeError:
            part = None
        if not hasattr(part, last):
            raise Undefined(f"the tensor {name} is neither parameter, buffer nor attribute of the module")
        places.append((part, last, getattr(part, last), array))
    try:
        for part, last, was, array in places:
            setattr(part, last, _tensor(array, was))
        yield
    finally:
        for part, last, was, _ in places:
            setattr(part, last, was)


def _tensor(array: Values, like: object) -> torch.Tensor:
    """An array in the shape and element type of a tensor."""
    import torch

    if not isinstance(like, torch.Tensor) or like.numel() != array.size:
        raise Undefined("its inputs are not those that were exported")
    return torch.from_numpy(np.array(array)).reshape(like.shape).to(like.dtype)


def _array(tensor: torch.Tensor) -> Values:
    import torch

    plain = tensor.detach()
    found: Values = (plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain).numpy()
    return found
