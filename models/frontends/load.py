"""One way in for models: a zoo name, an ONNX file, or our own JSON graph."""

from __future__ import annotations

from pathlib import Path

from ..console import InputError
from ..graph import Graph
from ..zoo import ZOO
from ..zoo import build as build_zoo


def load_model(spec: str, batch: int | None = None) -> Graph:
    """The graph behind `spec`.  Raises `InputError` naming what can be given, or the error of the frontend.

    >>> load_model("mlp-unity").name
    'mlp-unity'
    """
    if batch is not None and batch < 1:
        raise InputError(f"--batch {batch}: the batch must be at least 1")
    if spec in ZOO:
        return build_zoo(spec, batch=batch)
    path = Path(spec)
    if not path.exists():
        raise InputError(f"model {spec!r} is neither a zoo name nor a file; zoo: {', '.join(sorted(ZOO))}")
    if path.suffix == ".onnx":
        from .onnx import load_onnx

        return load_onnx(path, batch=batch)
    if path.suffix == ".json":
        if batch is not None:
            raise InputError("--batch applies to zoo names and ONNX files; a JSON graph has its sizes written in")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{spec}: cannot be read: {error}") from None
        return Graph.from_json(text)
    raise InputError(f"{spec}: unknown kind of model; give a zoo name, a .onnx file or a .json graph written by 'shardproof import'")
