"""Core ATen operators that draw random numbers: dropout and stochastic depth are the identity in an imported graph.

A mask that is drawn is replaced by its expectation, as `dropout` itself is: with  m = bernoulli(p) / p  the product
x m  becomes  x.  Memory that nothing was written to holds any contents, so zeros are as good as others.

    bernoulli(p)             p
    floor(p + rand)          p        (0 <= p <= 1: one with probability p)
    any other use of rand    refused
"""

from __future__ import annotations

from ..building.flat import Unsupported
from .context import Context, Handler, Node, Ref
from .pointwise import binary, elementwise


def uninitialised(c: Context, node: Node) -> None:
    """empty and its relatives."""
    c.fill(node, 0.0)


def bernoulli(c: Context, node: Node) -> None:
    """bernoulli with a probability, or with one per element."""
    given = node.arguments.get("p")
    if given is None:
        c.alias(node, node.ref("self"))
    else:
        c.fill(node, node.number("p", 0.5))


def rand(c: Context, node: Node) -> None:
    """rand, rand_like: known to be drawn evenly from [0, 1)."""
    c.even[Ref(node.name)] = 0.0


def add(c: Context, node: Node) -> None:
    """add, or random numbers plus a number."""
    left, right = node.arguments["self"], node.arguments["other"]
    for drawn, other in ((left, right), (right, left)):
        start = c.even.get(drawn) if isinstance(drawn, Ref) else None
        if start is not None:
            number = c.uniform(other)
            if number is None or node.number("alpha", 1.0) != 1.0:
                raise Unsupported("random numbers")
            c.even[Ref(node.name)] = start + number
            return
    binary(c, node)


def floor(c: Context, node: Node) -> None:
    """floor, or the mask that it makes of random numbers."""
    start = c.even.get(node.ref("self"))
    if start is None:
        elementwise(c, node, "floor", [node.ref("self")])
    elif 0.0 <= start <= 1.0:
        c.fill(node, start)
    else:
        raise Unsupported("random numbers that are no mask")


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"), uninitialised
    ),
    "bernoulli": bernoulli,
    **dict.fromkeys(("rand", "rand_like"), rand),
    "add": add,
    "floor": floor,
}
