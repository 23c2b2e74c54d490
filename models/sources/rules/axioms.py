"""Reads TASO's operator properties, restated as terms: `taso-axioms.json`, format `taso-axioms/1`.

An axiom is a pair of terms over tensor variables and parameters, such as
`(matmul x (matmul y z)) = (matmul (matmul x y) z)`.  One axiom stands for one equation per rank of its tensors and per
value of its enumerated parameters (axis, padding, activation); strides and kernels stay open.  Meaning of the words:
FlexFlow's `substitution_loader.h`; as substitutions: `meaning`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from ...files.json_text import JsonError, parse_json
from .formats import RuleError

Term = str | int | tuple["Term", ...]
"""A word, a number, or (head, argument, ..)."""

PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "concat": ("ax",),
    "split0": ("ax",),
    "split1": ("ax",),
    "conv": ("sh", "sw", "pad", "act"),
    "avgpool": ("kh", "kw", "sh", "sw", "pad"),
    "maxpool": ("kh", "kw", "sh", "sw", "pad"),
    "enlarge": ("kh", "kw"),
    "pool-kernel": ("kh", "kw"),
    "id-kernel": ("kh", "kw"),
}
"""Words whose first arguments are parameters."""

OPERANDS: Final[Mapping[str, int]] = {
    "add": 2,
    "mul": 2,
    "scale": 2,
    "matmul": 2,
    "transpose": 1,
    "relu": 1,
    "concat": 2,
    "split0": 1,
    "split1": 1,
    "conv": 2,
    "avgpool": 1,
    "maxpool": 1,
    "enlarge": 1,
    "pool-kernel": 0,
    "id-kernel": 0,
    "eye": 0,
    "ones": 0,
}
"""Number of tensor arguments of each word."""


CONSTANTS: Final = ("eye", "ones")
_PADDINGS: Final = ("same", "valid")
_ACTIVATIONS: Final = ("none", "relu", "sigmoid", "tanh")
_WORDS: Final = (*_PADDINGS, *_ACTIVATIONS)
DOMAINS: Final = ("axis<rank", "kernel>=1", "stride>=1")
KINDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ax": ("axis<rank", ()),
    "sh": ("stride>=1", ()),
    "sw": ("stride>=1", ()),
    "kh": ("kernel>=1", ()),
    "kw": ("kernel>=1", ()),
    "pad": ("", _PADDINGS),
    "act": ("", _ACTIVATIONS),
}
"""What each parameter of a word may be: its domain, or words."""

MOST_AXIOMS, MOST_NAMES, MOST_RANK, MOST_INSTANCES, LONGEST_TERM, DEEPEST_TERM = 1000, 16, 4, 256, 4000, 60
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


@dataclass(frozen=True)
class PublicAxiom:
    """`ranks`: allowed ranks of each tensor (`*` for the others); `parameters`: open ones with their domain;
    `conditions` beyond left typing.
    """

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
    return parse_public_axioms(path.read_bytes(), path.name)


def parse_public_axioms(text: str | bytes, place: str = "axioms") -> tuple[PublicAxiom, ...]:
    """The axioms of JSON text.  Raises `RuleError`."""
    try:
        data = parse_json(text)
    except JsonError as error:
        raise RuleError(place, f"is not JSON: {str(error)[:160]}") from None
    if not isinstance(data, dict) or data.get("format") != "taso-axioms/1" or not isinstance(data.get("axioms"), list):
        raise RuleError(place, 'lacks "format": "taso-axioms/1" and the list "axioms"')
    lemmas = data.get("lemmas", [])
    if not isinstance(lemmas, list) or len(data["axioms"]) + len(lemmas) > MOST_AXIOMS:
        raise RuleError(place, f"axioms and lemmas must be lists of at most {MOST_AXIOMS} together")
    found = tuple(_axiom(a, k) for k, a in enumerate([*data["axioms"], *lemmas]))
    names = [a.name for a in found]
    if len(set(names)) < len(names):
        raise RuleError(next(n for n in names if names.count(n) > 1), "two axioms of the file have this name")
    return found


def parse_term(text: str, place: str) -> Term:
    """The term of an s-expression.  Raises `RuleError`.

    >>> parse_term("(concat 1 x (relu y))", "axiom")
    ('concat', 1, 'x', ('relu', 'y'))
    """
    stack: list[list[Term]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
            if len(stack) > DEEPEST_TERM:
                raise RuleError(place, f"a term is nested more than {DEEPEST_TERM} deep")
        elif token == ")":
            if len(stack) < 2 or not stack[-1]:
                raise RuleError(place, f"{text[:200]!r}: a parenthesis too many, or nothing inside")
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(int(token) if re.fullmatch(r"-?[0-9]{1,9}", token) else token)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise RuleError(place, f"{text[:200]!r} is not one term")
    return stack[0][0]


def check_term(term: Term, tensors: tuple[str, ...], domains: Mapping[str, str | tuple[str, ...]], place: str) -> None:
    """`RuleError` unless every word is known and has its arguments.  `domains`: what each parameter may be."""
    if isinstance(term, int):
        raise RuleError(place, f"number {term} where a tensor is expected")
    if isinstance(term, str):
        if term not in tensors and term not in CONSTANTS:
            raise RuleError(place, f"unknown tensor {term!r}; declared: {', '.join(tensors) or 'none'}")
        return
    head = term[0]
    if not isinstance(head, str) or head not in OPERANDS:
        raise RuleError(place, f"unknown operator {str(head)[:40]!r}; known: {', '.join(sorted(OPERANDS))}")
    keys = PARAMETERS.get(head, ())
    if len(term) != 1 + len(keys) + OPERANDS[head]:
        raise RuleError(
            place, f"{head} takes {len(keys)} parameters and {OPERANDS[head]} tensors, not {len(term) - 1} arguments"
        )
    for key, word in zip(keys, term[1 : 1 + len(keys)], strict=True):
        if not _fits(key, word, domains):
            raise RuleError(place, f"{head}: parameter {key} cannot be {str(word)[:40]!r}")
    for argument in term[1 + len(keys) :]:
        check_term(argument, tensors, domains, place)


def _fits(key: str, word: Term, domains: Mapping[str, str | tuple[str, ...]]) -> bool:
    """Whether a parameter can be this: a value of its own, or a declared parameter all of whose values are such."""
    if isinstance(word, tuple):
        return False
    kind, words = KINDS[key]
    if isinstance(word, int):
        return not words and (0 if key == "ax" else 1) <= word < 1 << 31
    if word in words:
        return True
    domain = domains.get(word)
    return domain == kind if isinstance(domain, str) else domain is not None and set(domain) <= set(words)


def _axiom(data: object, position: int) -> PublicAxiom:
    place = f"axiom[{position}]"
    if (
        not isinstance(data, dict)
        or type(data.get("id")) not in (int, str)
        or not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", str(data["id"]))
    ):
        raise RuleError(place, "must be an object with an id: a number, or letters and digits")
    name = f"taso_axiom_{data['id']}"
    tensors = _texts(data.get("tensors"), name, "tensors", _NAME)
    params, ranks = data.get("params"), data.get("ranks")
    if not isinstance(params, dict) or not isinstance(ranks, dict):
        raise RuleError(name, "needs the objects params and ranks")
    if len(set(tensors)) < len(tensors) or len(tensors) > MOST_NAMES or len(params) > MOST_NAMES:
        raise RuleError(name, f"tensors must be different, and there may be {MOST_NAMES} of tensors and of params")
    strange = [
        t
        for t in (*tensors, *params)
        if t in OPERANDS or t in _WORDS or not _NAME.fullmatch(t) or (t in tensors and t in params)
    ]
    if strange:
        raise RuleError(name, f"{strange[0][:40]!r} cannot be the name of a tensor or parameter")
    domains = {k: _domain(v, name, k) for k, v in params.items()}
    allowed = tuple(
        (k, _ranks(v, name, k))
        for k, v in ranks.items()
        if k in (*tensors, "*") or _raise(name, f"ranks: there is no tensor {k[:40]!r}")
    )
    texts = [data.get(side) for side in ("left", "right")]
    if not all(isinstance(t, str) and len(t) <= LONGEST_TERM for t in texts):
        raise RuleError(name, f"left and right must be texts of at most {LONGEST_TERM} characters")
    left, right = (parse_term(str(t), name) for t in texts)
    for side in (left, right):
        check_term(side, tensors, domains, name)
    conditions = _texts(data.get("conditions", []), name, "conditions", None)
    words = [data.get(k, "") for k in ("verdict", "note")]
    if not all(isinstance(w, str) for w in words):
        raise RuleError(name, "verdict and note must be texts")
    found = PublicAxiom(
        name, left, right, tensors, tuple(domains.items()), allowed, conditions, str(words[0]), str(words[1])
    )
    count = len(dict(allowed).get("*", (4,)))
    for domain in domains.values():
        count *= 4 if domain == "axis<rank" else len(domain) if isinstance(domain, tuple) else 1
    if count > MOST_INSTANCES:
        raise RuleError(name, f"stands for {count} equations, more than {MOST_INSTANCES}")
    return found


def _texts(value: object, name: str, key: str, pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or len(value) > 64
        or not all(isinstance(v, str) and (pattern is None or pattern.fullmatch(v)) for v in value)
    ):
        raise RuleError(name, f"{key} must be a list of {'names' if pattern else 'texts'}")
    return tuple(value)


def _domain(value: object, name: str, key: str) -> str | tuple[str, ...]:
    if isinstance(value, str) and value in DOMAINS:
        return value
    if isinstance(value, list) and value and len(value) <= 8 and all(isinstance(v, str) and v in _WORDS for v in value):
        return tuple(dict.fromkeys(value))
    raise RuleError(name, f"params.{key} must be one of {', '.join(DOMAINS)}, or a list of {', '.join(_WORDS)}")


def _ranks(value: object, name: str, key: str) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or not value
        or len(value) > MOST_RANK + 1
        or not all(type(r) is int and 0 <= r <= MOST_RANK for r in value)
    ):
        raise RuleError(name, f"ranks.{key[:40]} must be a list of numbers from 0 to {MOST_RANK}")
    return tuple(dict.fromkeys(value))


def _raise(name: str, message: str) -> bool:
    raise RuleError(name, message)
