"""Runs a NumPy program expression by expression: a copy of its source in which every call, operator and
slice hands its value over, known as instrumented source.

    y = np.sin(x * 2)       ->      y = seen(1, np.sin(seen(0, x * 2)))

Functions of the same file that it calls are copied likewise.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Final

import numpy as np

from ..building.digits import digits_and_tensors
from ..building.original import Parts, Undefined, Values
from .array import TracedArray
from .program import ArraySpec
from .recorder import Recorder
from .views import View

Key = tuple[str, int, int]
"""Function, number of the expression, and how often it was reached before."""

_SEEN: Final = "__seen__"
_COPIED: Final = "__copied__"


class _Watch:
    """Takes the values of expressions as they are made; `places`: where expressions stand."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], str] = {}
        self.values: dict[Key, Values] = {}
        self.views: dict[Key, View] = {}
        self._times: dict[tuple[str, int], int] = {}
        self._copies: dict[int, Callable[..., object]] = {}

    def seen(self, function: str, number: int, value: object) -> object:
        """The value, which is kept."""
        at = function, number
        self._times[at] = self._times.get(at, -1) + 1
        key = *at, self._times[at]
        if isinstance(value, TracedArray):
            self.views[key] = value.view
        elif isinstance(value, np.ndarray | np.generic):
            self.values[key] = np.array(value)
        return value

    def copy_if_own(self, program: object, room: object) -> object:
        """A function of the same file with its expressions watched; anything else as it is."""
        if not isinstance(program, FunctionType) or program.__globals__ is not room:
            return program
        if id(program) not in self._copies:
            self._copies[id(program)] = program  # what calls itself, or has no source
            try:
                self._copies[id(program)] = self.watch_function(program)
            except (OSError, TypeError, SyntaxError, Undefined):
                pass
        return self._copies[id(program)]

    def watch_function(self, program: FunctionType) -> Callable[..., object]:
        """The copy of a function.  Raises `Undefined` where its source is not at hand."""
        try:
            lines, first = inspect.getsourcelines(program)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError) as error:
            raise Undefined(f"the source of {program.__name__} is not at hand") from error
        if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
            raise Undefined(f"{program.__name__} is no function that is written with def")
        ast.increment_lineno(tree, first - 1)
        definition = tree.body[0]
        definition.decorator_list, definition.returns = [], None
        file = Path(program.__code__.co_filename).name
        _Rewriter(program.__qualname__, file, self.places).visit_body(definition)
        free = [_SEEN, _COPIED, *program.__code__.co_freevars]
        outer = ast.parse(f"def outer({', '.join(free)}):\n    pass").body[0]
        assert isinstance(outer, ast.FunctionDef)
        outer.body = [definition]
        module = ast.fix_missing_locations(ast.Module([outer], []))
        code = _code_of(compile(module, program.__code__.co_filename, "exec"), program.__name__)
        cells = dict(zip(program.__code__.co_freevars, program.__closure__ or (), strict=True))
        cells |= {
            _SEEN: CellType(self.seen),
            _COPIED: CellType(lambda f: self.copy_if_own(f, program.__globals__)),
        }
        made = FunctionType(
            code, program.__globals__, program.__name__, program.__defaults__, tuple(cells[n] for n in code.co_freevars)
        )
        made.__kwdefaults__ = program.__kwdefaults__
        return made


def _code_of(code: CodeType, name: str) -> CodeType:
    """The code of the function inside the function of a module."""
    outer = next(c for c in code.co_consts if isinstance(c, CodeType))
    return next(c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name == name)


class _Rewriter(ast.NodeTransformer):
    """Puts every expression that may be an array into a call that hands it over."""

    def __init__(self, function: str, file: str, places: dict[tuple[str, int], str]) -> None:
        self._function, self._file, self._places, self._next = function, file, places, 0

    def visit_body(self, definition: ast.FunctionDef) -> None:
        """The statements, not the arguments and their defaults."""
        body = [self.visit(s) for s in definition.body]
        definition.body = [s for part in body for s in (part if isinstance(part, list) else [part])]
        for argument in [*definition.args.args, *definition.args.kwonlyargs, *definition.args.posonlyargs]:
            argument.annotation = None

    def _handed(self, node: ast.expr, changed: ast.expr) -> ast.expr:
        number, self._next = self._next, self._next + 1
        words = " ".join(ast.unparse(node).split())
        words = words if len(words) <= 60 else f"{words[:57]}..."
        self._places[self._function, number] = f"{words} at {self._file}:{node.lineno}"
        given = [ast.Constant(self._function), ast.Constant(number), changed]
        return ast.copy_location(ast.Call(ast.Name(_SEEN, ast.Load()), given, []), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call: its arguments, then itself."""
        plain = ast.parse(ast.unparse(node), mode="eval").body
        ast.copy_location(plain, node)
        if isinstance(node.func, ast.Name):
            function: ast.expr = ast.copy_location(ast.Call(ast.Name(_COPIED, ast.Load()), [node.func], []), node.func)
        else:
            function = node.func
            if isinstance(node.func, ast.Attribute):
                node.func.value = self.visit(node.func.value)
        arguments = [self.visit(a) for a in node.args]
        words = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        return self._handed(plain, ast.copy_location(ast.Call(function, arguments, words), node))

    def _expression(self, node: ast.expr) -> ast.expr:
        plain = ast.parse(ast.unparse(node), mode="eval").body
        ast.copy_location(plain, node)
        return self._handed(plain, self._inner(node))

    def _inner(self, node: ast.expr) -> ast.expr:
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.expr)
        return changed

    visit_BinOp = visit_UnaryOp = visit_Compare = _expression

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """A part that is read; one that is written stays."""
        return self._expression(node) if isinstance(node.ctx, ast.Load) else self._inner(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """What is updated in place is seen afterwards, as far as it has a name."""
        node.value = self.visit(node.value)
        if not isinstance(node.target, ast.Name):
            return [node]
        after = self._handed(
            ast.copy_location(ast.Name(node.target.id, ast.Load()), node), ast.Name(node.target.id, ast.Load())
        )
        return [node, ast.copy_location(ast.Expr(after), node)]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        """What a part is written into is seen afterwards."""
        node.value = self.visit(node.value)
        out: list[ast.stmt] = [node]
        for target in node.targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                name = target.value.id
                after = self._handed(ast.copy_location(ast.Name(name, ast.Load()), node), ast.Name(name, ast.Load()))
                out.append(ast.copy_location(ast.Expr(after), node))
        return out


def parts_of(program: Callable[..., object], specs: Mapping[str, ArraySpec], run: Callable[..., object]) -> Parts:
    """The program with every expression as an output; `run` calls a function on arrays, as the program is run.  Raises
    `Undefined`, and what the trace raises.
    """
    if not isinstance(program, FunctionType):
        raise Undefined("it is no function that is written with def")
    linecache.checkcache(program.__code__.co_filename)
    watch, recorder = _Watch(), Recorder("parts")
    watch.watch_function(program)(
        **{n: TracedArray.of(recorder, recorder.input(n, s.shape, s.dtype, s.role)) for n, s in specs.items()}
    )
    keys = list(watch.views)
    graph, tensors = recorder.finish([watch.views[k] for k in keys], [f"value {k}" for k in range(len(keys))])
    graph, stored = digits_and_tensors(graph)
    first: dict[str, Key] = {}
    for key, tensor in zip(keys, tensors, strict=True):
        first.setdefault(stored[tensor], key)

    def values_of(values: Mapping[str, Values]) -> tuple[Values, ...]:
        plain = _Watch()
        run(plain.watch_function(program), values)
        if lost := [first[t] for t in graph.outputs if first[t] not in plain.values]:
            raise Undefined(f"NumPy's program does not reach {watch.places[lost[0][:2]]}")
        return tuple(plain.values[first[t]] for t in graph.outputs)

    return Parts(graph, values_of, {t: watch.places[first[t][:2]] for t in graph.outputs})
