"""Five functions in NumPy's words, as text: traced by us with NumPy, run by JAX with `keep` as the plan's constraint."""

SIZES = {
    "perceptron": {"x": (64, 32), "w1": (32, 64), "w2": (64, 16)},
    "attention": {"x": (8, 16, 32), "wq": (32, 4, 8), "wk": (32, 4, 8), "wv": (32, 4, 8), "wo": (4, 8, 32)},
    "normalised": {"x": (16, 8, 32), "gain": (32,), "w": (32, 64), "back": (64, 32)},
    "experts": {"x": (32, 16), "router": (16, 4), "up": (4, 16, 32), "down": (4, 32, 16)},
    "table": {"a": (48, 64), "b": (64, 40), "c": (40, 24)},
}
WEIGHTS = {"w1", "w2", "wq", "wk", "wv", "wo", "gain", "w", "back", "router", "up", "down", "b", "c"}

A, B = {"node": 4}, {"gpu": 2}
STRATEGIES = {
    "perceptron": {"matmul": {"m": A, "n": B}, "hidden": {"i0": A, "i1": B}, "y": {"m": A, "k": B}},
    "attention": {
        **{name: {"b": B, "h": A} for name in ("q", "k", "v", "s", "z", "y")},
        **{name: {"i0": B, "i1": A} for name in ("max", "subtract", "e", "sum", "p")},
    },
    "normalised": {
        **{name: {"i0": A, "i1": B} for name in ("square", "mean", "add", "sqrt", "divide", "scaled")},
        "matmul": {"b0": A, "n": B},
        "hidden": {"i0": A, "i2": B},
        "matmul_2": {"b0": A, "k": B},
        "y": {"i0": A},
    },
    "experts": {
        **{name: {"i0": A} for name in ("score", "sum", "gate")},
        "matmul": {"m": A},
        "inside": {"e": A, "f": B},
        "active": {"i0": A, "i2": B},
        "outside": {"e": A, "f": B},
        "y": {"e": A},
    },
    "table": {"ab": {"m": {**A, **B}}, "y": {"n": A, "m": B}},
}
"""Placements that move something: features, heads and experts over devices, a product cut otherwise than its input."""

BODIES = {
    "perceptron": """
    hidden = keep("hidden", np.maximum(x @ w1, 0))
    y = keep("y", hidden @ w2)
    return y
""",
    "attention": """
    q = keep("q", np.einsum("bsm,mhd->bhsd", x, wq))
    k = keep("k", np.einsum("bsm,mhd->bhsd", x, wk))
    v = keep("v", np.einsum("bsm,mhd->bhsd", x, wv))
    s = keep("s", np.einsum("bhsd,bhtd->bhst", q, k))
    e = keep("e", np.exp(s - s.max(-1, keepdims=True)))
    p = keep("p", e / e.sum(-1, keepdims=True))
    z = keep("z", np.einsum("bhst,bhtd->bhsd", p, v))
    y = keep("y", np.einsum("bhsd,hdm->bsm", z, wo))
    return y
""",
    "normalised": """
    square = keep("square", x * x)
    mean = keep("mean", square.sum(-1, keepdims=True))
    scaled = keep("scaled", x / np.sqrt(mean + 0.5) * gain)
    hidden = keep("hidden", np.tanh(scaled @ w))
    y = keep("y", x + hidden @ back)
    return y
""",
    "experts": """
    score = keep("score", np.exp(x @ router))
    gate = keep("gate", score / score.sum(-1, keepdims=True))
    inside = keep("inside", np.einsum("tm,emf->etf", x, up))
    active = keep("active", np.maximum(inside, 0))
    outside = keep("outside", np.einsum("etf,efm->etm", active, down))
    y = keep("y", np.einsum("te,etm->tm", gate, outside))
    return y
""",
    "table": """
    ab = keep("ab", a @ b)
    y = keep("y", ab @ c)
    return y
""",
}


def text(name: str, constrained: bool) -> str:
    """The function; without its constraints where it is traced."""
    body = BODIES[name]
    if not constrained:
        lines = []
        for line in BODIES[name].splitlines():
            head, call, rest = line.partition("keep(")
            lines.append(head + rest.partition(", ")[2][:-1] if call else line)
        body = "\n".join(lines) + "\n"
    return f"def {name}({', '.join(SIZES[name])}):{body}"
