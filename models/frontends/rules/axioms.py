"""TASO's operator properties, restated as terms: `taso-axioms.json`, format `taso-axioms/1`.

An axiom is a pair of terms over tensor variables and parameters, such as `(matmul x (matmul y z)) = (matmul (matmul x y) z)`.  One axiom stands
for one equation per rank of its tensors and per value of its enumerated parameters (axis, padding, activation); strides and kernels stay open.
Meaning of the words: `shared/data/rules/README.md`; as substitutions: `public_meaning`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from ...json_text import JsonError, parse_json
from .formats import RuleError

Term = str | int | tuple["Term", ...]
"""A word, a number, or (head, argument, ..)."""

PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "concat": ("ax",), "split0": ("ax",), "split1": ("ax",), "conv": ("sh", "sw", "pad", "act"), "avgpool": ("kh", "kw", "sh", "sw", "pad"),
    "maxpool": ("kh", "kw", "sh", "sw", "pad"), "enlarge": ("kh", "kw"), "pool-kernel": ("kh", "kw"), "id-kernel": ("kh", "kw"),
}
"""Words whose first arguments are parameters."""

OPERANDS: Final[Mapping[str, int]] = {
    "add": 2, "mul": 2, "scale": 2, "matmul": 2, "transpose": 1, "relu": 1, "concat": 2, "split0": 1, "split1": 1, "conv": 2, "avgpool": 1, "maxpool": 1,
    "enlarge": 1, "pool-kernel": 0, "id-kernel": 0, "eye": 0, "ones": 0,
}
"""Number of tensor arguments of each word."""


@dataclass(frozen=True)
class PublicAxiom:
    """`ranks`: allowed ranks of each tensor (`*` for the others); `parameters`: open ones with their domain; `conditions` beyond left typing."""

    name: str
    left: Term
    right: Term
    tensors: tuple[str, ...]
    parameters: tuple[tuple[str, str | tuple[str, ...]], ...]
    ranks: tuple[tuple[str, tuple[int, ...]], ...]
    conditions: tuple[str, ...]
    verdict: str
    note: str

    def instances(self) -> Iterator[tuple[dict[str, int], dict[str, Term]]]:
        """(rank of each tensor, value of each enumerated parameter): one equation each."""
        ranks = dict(self.ranks)
        free = [t for t in self.tensors if t not in ranks]
        fixed = {t: ranks[t][0] for t in self.tensors if t in ranks}
        for rank in ranks.get("*", (4,)):
            choices: list[list[tuple[str, Term]]] = []
            for name, domain in self.parameters:
                if domain == "axis<rank":
                    choices.append([(name, k) for k in range(rank)])
                elif isinstance(domain, tuple):
                    choices.append([(name, word) for word in domain])
            for chosen in product(*choices):
                yield fixed | dict.fromkeys(free, rank), dict(chosen)


def read_public_axioms(path: Path | str) -> tuple[PublicAxiom, ...]:
    """Axioms, then lemmas.  Raises `RuleError` naming the file or the axiom."""
    path = Path(path)
    try:
        data = parse_json(path.read_bytes())
    except JsonError as error:
        raise RuleError(path.name, f"is not JSON: {str(error)[:160]}") from None
    if not isinstance(data, dict) or data.get("format") != "taso-axioms/1" or not isinstance(data.get("axioms"), list):
        raise RuleError(path.name, 'lacks "format": "taso-axioms/1" and the list "axioms"')
    return tuple(_axiom(a, k) for k, a in enumerate([*data["axioms"], *data.get("lemmas", [])]))


def parse_term(text: str, place: str) -> Term:
    """The term of an s-expression.  Raises `RuleError`.

    >>> parse_term("(concat 1 x (relu y))", "axiom")
    ('concat', 1, 'x', ('relu', 'y'))
    """
    stack: list[list[Term]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) < 2 or not stack[-1]:
                raise RuleError(place, f"{text!r}: a parenthesis too many, or nothing inside")
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(int(token) if re.fullmatch(r"-?[0-9]{1,9}", token) else token)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise RuleError(place, f"{text!r} is not one term")
    return stack[0][0]


def check_term(term: Term, tensors: tuple[str, ...], parameters: tuple[str, ...], place: str) -> None:
    """`RuleError` unless every word is known and has its arguments."""
    if isinstance(term, int):
        raise RuleError(place, f"number {term} where a tensor is expected")
    if isinstance(term, str):
        if term not in tensors and term not in ("eye", "ones"):
            raise RuleError(place, f"unknown tensor {term!r}; declared: {', '.join(tensors) or 'none'}")
        return
    head = term[0]
    if not isinstance(head, str) or head not in OPERANDS:
        raise RuleError(place, f"unknown operator {head!r}; known: {', '.join(sorted(OPERANDS))}")
    skip = len(PARAMETERS.get(head, ()))
    if len(term) != 1 + skip + OPERANDS[head]:
        raise RuleError(place, f"{head} takes {skip} parameters and {OPERANDS[head]} tensors, not {len(term) - 1} arguments")
    for word in term[1:1 + skip]:
        if isinstance(word, tuple) or (isinstance(word, str) and word not in parameters and word not in ("same", "valid", "none", "relu")):
            raise RuleError(place, f"{head}: unknown parameter {word!r}")
    for argument in term[1 + skip:]:
        check_term(argument, tensors, parameters, place)


def _axiom(data: object, position: int) -> PublicAxiom:
    place = f"axiom[{position}]"
    if not isinstance(data, dict) or not isinstance(data.get("id"), int | str):
        raise RuleError(place, "must be an object with an id")
    name = f"taso_axiom_{data['id']}"
    tensors, params, ranks = data.get("tensors"), data.get("params"), data.get("ranks")
    if not (isinstance(tensors, list) and isinstance(params, dict) and isinstance(ranks, dict)):
        raise RuleError(name, "needs tensors, params and ranks")
    sides = [parse_term(str(data.get(side, "")), name) for side in ("left", "right")]
    for side in sides:
        check_term(side, tuple(map(str, tensors)), tuple(params), name)
    return PublicAxiom(
        name, sides[0], sides[1], tuple(map(str, tensors)),
        tuple((str(k), tuple(map(str, v)) if isinstance(v, list) else str(v)) for k, v in params.items()),
        tuple((str(k), tuple(int(r) for r in v)) for k, v in ranks.items()),
        tuple(map(str, data.get("conditions", []))), str(data.get("verdict", "")), str(data.get("note", "")),
    )
