"""Reads JSON text as Python values: the one reader of JSON, for files that anybody may have written.

Python's own reader takes the last of two equal keys, so that two readers of one file may see two files; it takes `NaN`,
and makes texts of half a character (lone surrogates) that no file can be written with.  All of that is refused here,
and so are other encodings than UTF-8.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Final, NoReturn

_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """Text that is not JSON as it is read here; readers say so in their own words, with the place."""


def parse_json(text: str | bytes, *, floats: bool = True, decimals: bool = False) -> object:
    """The value of a JSON text.  Raises `JsonError` and nothing else; without `floats` numbers are integers, with
    `decimals` a number with a fraction or an exponent is the `Decimal` that is written, to its last digit.

    >>> parse_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ..
    shardproof.models.files.json_text.JsonError: key 'a' occurs twice in one object
    """
    try:
        number = Decimal if decimals else None if floats else _no_number
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        value: object = json.loads(decoded, object_pairs_hook=_once, parse_constant=_no_number, parse_float=number)
        if _HALF.search(decoded):
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except JsonError:
        raise
    except UnicodeDecodeError as error:
        raise JsonError(f"is not UTF-8 text (byte {error.start}: {error.reason})") from None
    except UnicodeEncodeError:
        raise JsonError("a text holds half a character (a lone surrogate)") from None
    except RecursionError:
        raise JsonError("lists and objects are nested too deeply") from None
    except MemoryError:
        raise JsonError("is too large for the memory of this computer") from None
    except ArithmeticError:
        raise JsonError("a number has an exponent of more digits than can be read") from None
    except ValueError as error:  # JSONDecodeError, integers of thousands of digits
        raise JsonError(str(error)[:160]) from None
    return value


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonError(f"key {key[:80]!r} occurs twice in one object")
            seen.add(key)
    return out


def _no_number(text: str) -> NoReturn:
    raise JsonError(f"{text[:40]} is not an integer" if text[-1:].isdigit() else f"{text[:40]} is not a number")
