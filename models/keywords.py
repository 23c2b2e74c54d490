"""Functions whose arguments are the fields of a frozen dataclass: every option is written once, with its default."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")


def keywords_of(kind: Callable[P, Options]) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """A function takes what `kind` is made of; `help`, type checkers and refusals of other names see its fields.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     width: int
    ...     height: int = 2
    >>> @keywords_of(Box)
    ... def area(box: Box) -> int:
    ...     return box.width * box.height
    >>> area(3), area(3, height=4), area(3, hight=4)
    Traceback (most recent call last):
    TypeError: area() got an unexpected keyword argument 'hight'
    >>> area(3), area(3, height=4)
    (6, 12)
    """
    said, made = signature(kind), f"{getattr(kind, '__name__', kind)}.__init__()"

    def decorate(function: Callable[[Options], Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> Result:
            try:
                options = kind(*args, **given)
            except TypeError as error:
                raise TypeError(str(error).replace(made, f"{function.__name__}()", 1)) from None
            return function(options)

        result = signature(function).return_annotation
        call.__signature__ = said.replace(return_annotation=result)  # type: ignore[attr-defined]
        return call

    return decorate
