"""Reads what is written below the fields of a dataclass of options: their units and reasons, known as
attribute docstrings.

    name: type = default
    \"\"\"unit: reason\"\"\"
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise


def documentation_of(options: type[object]) -> dict[str, tuple[str, str]]:
    """Unit and reason of every field that has them.

    >>> from .primal import PrimalOptions
    >>> documentation_of(PrimalOptions)["fit_size"]
    ('vertices', 'of one move while a start is made to fit')
    """
    found: dict[str, tuple[str, str]] = {}
    (made,) = ast.parse(inspect.getsource(options)).body
    assert isinstance(made, ast.ClassDef)
    for field, below in pairwise(made.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                unit, _, reason = " ".join(text.split()).partition(": ")
                found[name] = unit, reason
    return found
