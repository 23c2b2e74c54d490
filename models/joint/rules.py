"""Rules by which operators are added to an e-graph: names and statements.

A rule is a law of the real numbers, stated for tensors of any shape.  What makes an added operator equal is not the
name: the checker computes what both sides mean at the place where the rule is applied, with its sizes
(`verify/joint/derivation.py`), and accepts under a name only what has the form of that rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

DEFINE: Final = "define"
EQUAL: Final = "equal-operators"
"""Congruence: a law that is about operators and not about numbers, so it holds of every function and type."""
AGAIN: Final = "compute-again"
"""Likewise: what an operator computes once more is what it computed, bit for bit."""

OFFLOAD: Final = "offload"
"""Likewise: what was copied to a device's host and back is what it was."""

ROUNDS: Final = 2
"""How often all rules are tried: what two rules give one after the other."""
MOST_ROUNDS: Final = 8
"""Rounds that may be asked for: rules that build on each other more often have filled every e-graph before."""
MOST_NODES: Final = 2000
"""Operators that are added at most; tables of more would take longer than the search has."""
NODES_ASKED: Final = 20_000
"""Operators that may be asked for: files of more would take a checker longer than it gives one."""

STATEMENTS: Final = MappingProxyType(
    {
        DEFINE: "a new tensor is what its first operator computes",
        "fuse-epilogue": "f(sum of products) is a product with epilogue f, if no summed axis is split",
        "relu-from-output": "[relu(x) > 0] = [x > 0]: the gradient of relu from what it gave",
        "add-many": "(a + b) + c = sum of a, b, c",
        "add-products": "a b + c d is one sum of products",
        "distribute": "a b + a c = a (b + c)",
        "reassociate": "(a b) c = a (b c)",
        "read-through-copy": "an operator that reads a copy reads what was copied where it lies",
        "merge-siblings": "products of one tensor with several are parts of its product with all of them side by side",
        "product-of-parts": "a product with tensors side by side is the sum of the products with each",
        "map-of-parts": "f of tensors side by side is f of each, side by side",
        "map-of-a-part": "a part of f(x) is f of that part of x",
        "fuse-attention": "softmax of products, times values, is attention, whose scores are never stored",
        "normal-of-a-part": "a part, or another order, of softmax or a norm of rows is that of these rows",
        "into-norm": "a norm times gamma, plus beta, is the norm that does both",
        "greatest-of-map": "the greatest f(x) is f of the greatest x, if f never falls and no window is empty",
        "product-of-average": "a product of averages over windows is the average of products",
        "product-of-rows": "a product with rows of a table is rows of the product with the table",
        EQUAL: "equal operators of equal operands give one tensor: who reads one may read the other",
        AGAIN: "an operator that runs once more gives the same tensor: the backward pass need not keep it",
        OFFLOAD: "a tensor that comes back from the memory of the host is the tensor that went there",
    }
)
"""Name -> what it says."""

ADDED: Final = (
    frozenset({"product-of-parts"}),
    frozenset(
        {
            *("fuse-attention", "normal-of-a-part", "into-norm"),
            *("greatest-of-map", "product-of-average", "product-of-rows"),
        }
    ),
    frozenset({EQUAL}),
    frozenset({AGAIN}),
    frozenset({OFFLOAD}),
)
"""Rules that the first library lacked, in the order in which libraries gained them."""


def _identity(names: frozenset[str]) -> str:
    return hashlib.sha256(json.dumps({n: STATEMENTS[n] for n in names}, sort_keys=True).encode()).hexdigest()


LIBRARY: Final = _identity(frozenset(STATEMENTS))
"""Identity of the rules, stated by every claim about an e-graph."""

FIRST: Final = _identity(frozenset(STATEMENTS) - frozenset().union(*ADDED))
"""Identity of the first library; plans that used it are read."""


def _libraries() -> Iterator[tuple[str, frozenset[str]]]:
    names = frozenset(STATEMENTS) - frozenset().union(*ADDED)
    for more in (frozenset[str](), *ADDED):
        names |= more
        yield _identity(names), names


LIBRARIES: Final = MappingProxyType(dict(_libraries()))
"""Identity -> names of its rules."""
