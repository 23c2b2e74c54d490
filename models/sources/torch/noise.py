"""Random numbers: masks of dropout and of stochastic depth are their mean, anything else is an
input of the graph.

    native_dropout(x)                                     -> x               (`pointwise.identity`)
    bernoulli(p) / p * x           timm, torchvision      -> x               mean of bernoulli(p) is p
    floor(p + rand()) / p * x      Hugging Face           -> x               floor(p + u) is 1 with probability p
    where(rand() < p, a, b)        labels of guidance     -> b, for p < 1/2  the likelier of both
    uniform(1 - e, 1 + e) * x      jitter of routers      -> x               its mean is 1
    argmax(x - log(exponential()))   drawn experts        -> argmax(x)       the likeliest draw; the mean of each is 1
    randn, randint, rand read otherwise  -> an input        noise of diffusion, masked patches, jitter

So a training step computes the expectation over the masks, and costs what the step costs; other random numbers have no
such reading: who runs the step draws them, and is told which they are.  Memory that nobody has set (`empty`) may hold
anything, so zeros.
"""

from __future__ import annotations

from math import floor

from ..building.flat import Unsupported
from . import pointwise
from .context import Context, Handler, Node, Ref

_REASON = "random numbers that depend on what is computed; make them an input"


def unset(c: Context, node: Node) -> None:
    """empty and its relatives."""
    c.fill(node, 0.0)


def mask(c: Context, node: Node) -> None:
    """bernoulli with one probability everywhere: its mean."""
    p = node.arguments.get("p")
    chance = c.uniform(p if p is not None else node.arguments["self"])
    if chance is None or not 0.0 <= chance <= 1.0:
        raise Unsupported("probabilities that are computed")
    c.fill(node, chance)


def uniform(c: Context, node: Node) -> None:
    """rand: a value that only `add_to_noise` and `floor_noise` may read."""
    c.noise[Ref(node.name)] = 0.0


def jitter(c: Context, node: Node) -> None:
    """uniform between two numbers: noise like rand, or jitter around 1, which is 1 on average."""
    low, high = node.number("from", 0.0), node.number("to", 1.0)
    if (low, high) == (0.0, 1.0):
        c.noise[Ref(node.name)] = 0.0
    elif abs(low + high - 2.0) < 1e-9:
        c.fill(node, 1.0)
    else:
        c.draw(Ref(node.name), f"uniform in [{low:g}, {high:g})")


def waiting(c: Context, node: Node) -> None:
    """exponential: who subtracts its logarithm draws by it, and without noise takes the likeliest."""
    c.fill(node, 1.0 / node.number("lambd", 1.0))


def add_to_noise(c: Context, node: Node) -> None:
    """add, of noise and a number: noise still."""
    left, right = node.arguments["self"], node.arguments["other"]
    for noise, number in ((left, right), (right, left)):
        if isinstance(noise, Ref) and noise in c.noise:
            by = c.uniform(number)
            if by is None or node.number("alpha", 1.0) != 1.0:
                break  # read as it is
            c.noise[Ref(node.name)] = c.noise[noise] + by
            return
    pointwise.binary(c, node)


def floor_noise(c: Context, node: Node) -> None:
    """floor of noise in [p, p + 1): floor(p) + 1 with probability p - floor(p), else floor(p); on average p."""
    x = node.ref("self")
    if x not in c.noise:
        pointwise.unary(c, node)
        return
    if floor(c.noise[x]) != 0:
        pointwise.unary(c, node)
        return
    c.fill(node, c.noise[x])


def likelier(c: Context, node: Node) -> None:
    """A comparison of noise with a number, as the masks of dropped labels: what is the case more often."""
    x, other = node.arguments["self"], node.arguments["other"]
    if not (isinstance(x, Ref) and x in c.noise):
        pointwise.binary(c, node)
        return
    bound = c.uniform(other)
    if bound is None:
        pointwise.binary(c, node)
        return
    below = bound - c.noise[x] > 0.5
    c.fill(node, float(below == (pointwise.short_kind(node) in ("lt", "le"))))


def draw_numbers(c: Context, node: Node) -> None:
    """randn, randint, randperm: an input."""
    kind = pointwise.short_kind(node)
    if kind.startswith("normal"):
        given = node.arguments.get("mean"), node.arguments.get("std")
        if any(isinstance(v, Ref) for v in given):
            raise Unsupported(_REASON)
        told = f"normal, mean {node.number('mean', 0.0):g}, deviation {node.number('std', 1.0):g}"
    elif kind.startswith("randint"):
        told = f"integers from {node.integer('low', 0)} to {node.integer('high', 1) - 1}"
    else:
        told = "normal" if kind.startswith("randn") else "a permutation"
    c.draw(Ref(node.name), told)


def refuse_drawing(c: Context, node: Node) -> None:
    """multinomial: drawn by probabilities that are computed."""
    raise Unsupported(_REASON)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"), unset
    ),
    "bernoulli": mask,
    **dict.fromkeys(("rand", "rand_like"), uniform),
    "uniform": jitter,
    "exponential": waiting,
    "add": add_to_noise,
    "floor": floor_noise,
    **dict.fromkeys(("lt", "le", "gt", "ge"), likelier),
    **dict.fromkeys(
        (*("randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_functional"),),
        draw_numbers,
    ),
    "multinomial": refuse_drawing,
}
