"""Rules by which operators are added to an e-graph: names and statements.

A rule is a law of the real numbers, stated for tensors of any shape.  What makes an added operator equal is not the
name: the checker computes what both sides mean at the place where the rule is applied, with its sizes
(`verify/joint/derivation.py`), and accepts under a name only what has the form of that rule.
"""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import Final

DEFINE: Final = "define"

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
    }
)
"""Name -> what it says."""

LATER: Final = frozenset({"product-of-parts"})
"""Rules that the first library lacked."""


def _identity(names: frozenset[str]) -> str:
    return hashlib.sha256(json.dumps({n: STATEMENTS[n] for n in names}, sort_keys=True).encode()).hexdigest()


LIBRARY: Final = _identity(frozenset(STATEMENTS))
"""Identity of the rules, stated by every claim about an e-graph."""

FIRST: Final = _identity(frozenset(STATEMENTS) - LATER)
"""Identity of the first library; plans that used it are read."""

LIBRARIES: Final = MappingProxyType({LIBRARY: frozenset(STATEMENTS), FIRST: frozenset(STATEMENTS) - LATER})
"""Identity -> names of its rules."""
