"""A name for every dimension of every tensor, so that operators that are added read like their
neighbours.
"""

from __future__ import annotations

from ...program.graph import Graph


def dimension_names(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Tensor -> a name per dimension, as its writer (else its first plain reader) calls them.

    >>> from ..zoo import build
    >>> dimension_names(build("mlp-unity"))["fc1"]
    ('b', 'n')
    """
    names = {op.output.tensor: op.output.axes for op in graph.operators}
    for op in graph.operators:
        for a in op.inputs:
            singles = tuple(i.single for i in a.index if i.single is not None)
            if len(set(singles)) == len(a.index):
                names.setdefault(a.tensor, singles)
    return {t.name: names.get(t.name, tuple(f"i{k}" for k in range(len(t.shape)))) for t in graph.tensors}
