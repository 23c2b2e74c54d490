"""Guards: branches that do nothing but raise, so that a program whose values are allowed goes the
other way.

    if torch.any(variance < 0): raise ValueError(..)        the answer is False
    assert x.min() >= 0                                      the answer is True
    if not valid: raise ..                                   True, as `not` makes it False
    if known and torch.any(..): raise ..                     False of every part: then nothing is raised either

A `not` inside a part would turn its answer, and is not answered.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FrameType

_BETWEEN = ("torch._", "torch.export", "torch.overrides", "torch.fx", "torch.utils")
"""Modules of PyTorch that hand a question on."""


def goes_on(asking: FrameType | None) -> bool | None:
    """What a tensor's truth must be where a program asks for it now, so that nothing is raised; None where that decides
    more than whether something is raised.  `asking`: the innermost frame.
    """
    frame = asking
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None:
        return None
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    return _answer(tree, frame.f_lineno - first + 1)


def _answer(tree: ast.AST, line: int) -> bool | None:
    """The answer in the guard whose test is on that line.

    >>> _answer(ast.parse("if bad(x):\\n    raise ValueError"), 1), _answer(ast.parse("assert not bad"), 1)
    (False, False)
    >>> _answer(ast.parse("if bad(x):\\n    x = 1"), 1) is _answer(ast.parse("assert a and not b"), 1) is None
    True
    >>> _answer(ast.parse("assert a and b"), 1), _answer(ast.parse("if wide and bad(x):\\n    raise ValueError"), 1)
    (True, False)
    """
    for node in ast.walk(tree):
        if not isinstance(node, (ast.If, ast.Assert)):
            continue
        if not node.test.lineno <= line <= (node.test.end_lineno or node.test.lineno):
            continue
        passes = isinstance(node, ast.Assert)
        if isinstance(node, ast.If) and (node.orelse or not isinstance(node.body[-1], ast.Raise)):
            return None
        if isinstance(node, ast.If) and any(not isinstance(b, (ast.Raise, ast.Assign)) for b in node.body):
            return None
        test = node.test
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, passes = test.operand, not passes
        asks = (ast.Not, ast.IfExp, ast.NamedExpr)
        return None if any(isinstance(n, asks) for n in ast.walk(test)) else passes
    return None
