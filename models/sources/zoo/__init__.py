"""The zoo: models built by name, with sizes as options.

>>> build("mlp-unity", batch=32).tensor("fc2").shape
(32, 10)
>>> len(build("bert-large", layers=2).operators)
47
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from types import MappingProxyType
from typing import Final

from ...program.graph import ELEMENT_BYTES, Graph
from ..patterns.recognise import recognise
from . import decoder, dense, experts, inception, language, recommendation, recurrent, residual, vision, vit
from .published import PUBLISHED
from .tiny import TINY

__all__ = ["PUBLISHED", "TINY", "ZOO", "ZooError", "build", "default_batch", "sizes_of", "sizes_words", "zoo_spec"]

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)

ZOO: Final[Mapping[str, Callable[..., Graph]]] = MappingProxyType(
    {
        "alexnet": vision.alexnet,
        "attention": language.attention,
        "bert-large": language.bert_large,
        "bert-tiny": language.bert_tiny,
        "candle-uno": recommendation.candle_uno,
        "conv-stack": vision.conv_stack,
        "dlrm": recommendation.dlrm,
        "inception-v3": inception.inception_v3,
        "linear-training": dense.linear_training,
        "llama": decoder.llama,
        "mlp-8192": dense.mlp_8192,
        "mlp-uneven": dense.mlp_uneven,
        "mlp-unity": dense.mlp_unity,
        "mlp-unity-training": dense.mlp_unity_training,
        "moe": experts.moe,
        "resnet101": residual.resnet101,
        "resnext50": residual.resnext50,
        "rnnlm": recurrent.rnnlm,
        "transformer": language.transformer,
        "transformer-layer": language.transformer_layer,
        "vit": vit.vit,
        "xdl": recommendation.xdl,
    }
)
"""Name -> function that builds the graph; its keyword arguments (all with defaults) are the options."""


class ZooError(ValueError):
    """An unknown model name, option or option value; the message lists what exists."""


def build(name: str, batch: int | None = None, **options: int | str) -> Graph:
    """The zoo model `name`, or one of published size; `batch` and `options` replace the defaults of its sizes.

    Raises `ZooError` for an unknown name or option, or a size below 1.
    """
    if name not in ZOO and name not in PUBLISHED:
        raise ZooError(
            f"no model {name!r} in the zoo; it has: {', '.join(sorted(ZOO))}; of published sizes: "
            f"{', '.join(sorted(PUBLISHED))}"
        )
    make = ZOO[name] if name in ZOO else PUBLISHED[name].make
    known = signature(make).parameters
    values: dict[str, int | str] = {} if name in ZOO else dict(PUBLISHED[name].sizes)
    values |= {**options, **({} if batch is None else {"batch": batch})}
    for key, value in values.items():
        if key not in known:
            raise ZooError(f"model {name!r} has no option {key!r}; it has: {', '.join(known)}")
        if isinstance(known[key].default, int):
            least = 0 if key.endswith("_percent") else 1
            if type(value) is not int or value < least:
                raise ZooError(f"model {name!r}: option {key} must be an integer of at least {least}, got {value!r}")
        elif key == "dtype" and value not in ELEMENT_BYTES:
            raise ZooError(f"model {name!r}: unknown element type {value!r}; known: {', '.join(ELEMENT_BYTES)}")
    graph = make(**values)
    return graph if name in ZOO else recognise(replace(graph, name=name), attention=True).graph


def zoo_spec(spec: str) -> tuple[str, dict[str, int | str]] | None:
    """The zoo name of `NAME` or `NAME:size=value,..` with the sizes given; None for what names no zoo model.  Raises
    `ZooError` for a size that is not written so.

    >>> zoo_spec("llama:layers=2,batch=8"), zoo_spec("net.onnx")
    (('llama', {'layers': 2, 'batch': 8}), None)
    """
    name, colon, text = spec.partition(":")
    if name not in ZOO and name not in PUBLISHED:
        return None
    known = signature(ZOO[name] if name in ZOO else PUBLISHED[name].make).parameters
    given: dict[str, int | str] = {}
    for part in text.split(",") if colon else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value) or key in given:
            raise ZooError(
                f"model {spec[:200]!r}: {part[:100]!r} is not a size; write {name}:key=value,key=value, each key once, "
                f"out of {', '.join(known)}"
            )
        number = _INTEGER.fullmatch(value) and not isinstance(known[key].default if key in known else 0, str)
        given[key] = int(value) if number else value
    return name, given


def sizes_of(name: str) -> dict[str, object]:
    """The sizes of a zoo model with their defaults.

    >>> sizes_of("bert-tiny")
    {'batch': 8, 'layers': 2, 'sequence': 16, 'dtype': 'float64'}
    """
    make = ZOO[name] if name in ZOO else PUBLISHED[name].make
    own = {} if name in ZOO else PUBLISHED[name].sizes
    return {k: own.get(k, p.default) for k, p in signature(make).parameters.items()}


def sizes_words(name: str, given: Mapping[str, int | str]) -> str:
    """Every size of a zoo model, those that were given apart from its defaults.

    >>> sizes_words("bert-tiny", {"layers": 1})
    'bert-tiny with layers=1; taken as they were not given: batch=8, sequence=16, dtype=float64'
    """
    taken = {k: value for k, value in sizes_of(name).items() if k not in given}
    words = [", ".join(f"{key}={_short(value)}" for key, value in part.items()) for part in (given, taken)]
    said = f"{name} with {words[0]}" if words[0] else name
    return f"{said}; taken as they were not given: {words[1]}" if words[1] else said


def _short(value: object) -> str:
    """A default in few characters: sequences of many sizes are cut."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}.."


def default_batch(spec: str) -> int | None:
    """The batch size that a zoo model has unless another is given; None for what is not in the zoo, or has one given.

    >>> default_batch("bert-tiny"), default_batch("bert-tiny:batch=4"), default_batch("prog.py:layer")
    (8, None, None)
    """
    found = zoo_spec(spec)
    if found is None or "batch" in found[1]:
        return None
    name = found[0]
    if name in PUBLISHED:
        return int(PUBLISHED[name].sizes["batch"])
    option = signature(ZOO[name]).parameters.get("batch")
    return option.default if option is not None and isinstance(option.default, int) else None
