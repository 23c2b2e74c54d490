"""Programs as a user writes them; the tests plan, audit and run them from the command line.

shardproof plan tests/programs/prog.py:matmul --machine localhost:8 -o matmul.spz
"""

import numpy as np

from shardproof import float32, float64, opaque, parameter, program


@program(a=(64, 48), b=(48, 32))
def matmul(a, b):
    return a @ b


def softmax(x: float64[8, 32]):
    top = np.max(x, axis=-1, keepdims=True)
    e = np.exp(x - top)
    return e / e.sum(axis=-1, keepdims=True)


@program("float32", x=(16, 24), w1=parameter(24, 32, dtype="float32"), w2=parameter(32, 8, dtype="float32"))
def mlp(x, w1, w2):
    hidden = np.maximum(x @ w1, 0)
    return hidden @ w2


@opaque(reference=softmax)
def own_softmax(x):
    """Stands for a kernel of the user's: same values, other code."""
    shifted = np.asarray(x) - np.max(x, axis=-1)[..., None]
    return np.exp(shifted - np.log(np.exp(shifted).sum(axis=-1))[..., None])


def attention(q: float64[4, 16, 8], k: float64[4, 16, 8], v: float64[4, 16, 8]):
    scores = np.einsum("hik,hjk->hij", q, k)
    return own_softmax(scores) @ v


def unsupported(x: float32[8, 8]):
    order = np.sort(x, axis=0)
    return np.linalg.norm(order) + np.hypot(x, x)


def conditional(x: float32[8]):
    return x if x[0] > 0 else -x


def plain(x):
    return x + 1
