"""The line of a text in which a word of settings stands, and the objects of a YAML with the lines of their keys."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...text import InputError

if TYPE_CHECKING:
    import yaml

_DEEPEST: Final = 64
"""Objects in objects; settings of frameworks have at most six."""

_MOST_NODES: Final = 1 << 16
"""Values of a file, those of anchors at each of their places."""

_TAGS: Final = frozenset({"null", "bool", "int", "float", "str", "timestamp", "merge", "value"})
"""What a text in a YAML may be; binary data and objects of programs are no settings."""

_NUMBER: Final = re.compile(r"[+-]?\d{1,20}(\.\d{0,20})?[eE][+-]?\d{1,3}", re.ASCII)


@dataclass
class Places:
    """`lines`: dotted name -> line, of what a parser has placed; other words are looked for in the `text`."""

    text: str
    lines: dict[str, int] = field(default_factory=dict)

    def line(self, word: str) -> int | None:
        """The line of a word, from 1 on; None in a text of one line, and for what is not found.

        >>> Places("[parallelism]\\ntensor_parallel_degree = 8").line("parallelism.tensor_parallel_degree")
        2
        """
        if self.text.strip().count("\n") == 0:
            return None
        if word in self.lines:
            return self.lines[word]
        bare = "\n".join("" if line.lstrip().startswith("#") else line for line in self.text.splitlines())
        at = _found(bare, word, 0)
        if at < 0 and word.lstrip("-").count(".") > 0:
            at = 0
            for part in word.lstrip("-").split("."):
                found = _found(bare, part, at)
                if found < 0:
                    break
                at = found
            else:
                return bare.count("\n", 0, at) + 1
            return None
        return None if at < 0 else bare.count("\n", 0, at) + 1


def _found(text: str, word: str, start: int) -> int:
    """Where a word begins that is no part of a longer one; -1 if it is nowhere."""
    match = re.compile(rf"(?<![\w.-]){re.escape(word[:200])}(?![\w-])").search(text, start)
    if match is None and not word.startswith("-"):  # a key that is written as a flag
        dashed = re.escape(word[:200]).replace("_", "[_-]")
        match = re.compile(rf"(?<![\w.-])--{dashed}(?![\w-])").search(text, start)
    return -1 if match is None else match.start()


def of_yaml(text: str) -> tuple[dict[str, object], dict[str, int]]:
    """The object of a YAML, and the line of each of its keys under its dotted name.

    Numbers such as 1e-4, which YAML 1.1 takes for texts, are numbers; an anchor's value stands at each of its places,
    and `<<` takes the keys of others that are not said.  Raises `InputError` for a text that is no YAML or no object,
    for keys that stand twice, and for tags.

    >>> of_yaml("a:\\n  b: 1e-4\\n  c: [x, 'no']\\n")
    ({'a': {'b': 0.0001, 'c': ['x', 'no']}}, {'a': 1, 'a.b': 2, 'a.c': 3})
    """
    import yaml

    if (deep := _too_deep(text)) is not None:
        raise InputError(f"line {deep}: more than {_DEEPEST} brackets in one another; settings have fewer")
    lines: dict[str, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        found = None if node is None else _Values(loader, lines).value(node, "", 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 1}: "
        raise InputError(f"{place}is no YAML: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    except RecursionError:
        raise InputError("is no YAML of settings: objects in objects without end") from None
    if not isinstance(found, dict):
        raise InputError("is a YAML without keys, and no settings")
    return found, lines


def _too_deep(text: str) -> int | None:
    """The line in which brackets are too deep in one another; None if none is.  The parser takes the square of their
    depth.
    """
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
        if depth > _DEEPEST:
            return text.count("\n", 0, bracket.start()) + 1
    return None


@dataclass
class _Values:
    """Values of nodes, with the lines of keys; `left`: nodes that may be read, as anchors in anchors grow fast."""

    loader: yaml.SafeLoader
    lines: dict[str, int]
    left: int = _MOST_NODES

    def value(self, node: yaml.Node, above: str, depth: int) -> object:
        import yaml

        place = f"line {node.start_mark.line + 1}"
        self.left -= 1
        if depth > _DEEPEST or self.left < 0:
            most = f"{_DEEPEST} objects in one another" if depth > _DEEPEST else f"{_MOST_NODES} values"
            raise InputError(f"{place}: more than {most}; settings have fewer")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{above}.", depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return self.keys(node, above, depth)
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            raise InputError(f"{place}: {node.tag[:60]} is a tag of a program; write the value itself")
        try:
            found = self.loader.construct_object(node)
        except (ValueError, yaml.YAMLError):  # 2024-13-45
            return str(node.value)
        if isinstance(found, str) and node.style is None and _NUMBER.fullmatch(found):
            return float(found)
        return found if found is None or isinstance(found, (str, int, float)) else str(node.value)

    def keys(self, node: yaml.MappingNode, above: str, depth: int) -> dict[str, object]:
        import yaml

        out: dict[str, object] = {}
        merged: list[object] = []
        for key, value in node.value:
            place = f"line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{place}: a key is no text")
            name = f"{above}{key.value}"
            if key.tag == "tag:yaml.org,2002:merge":
                found = self.value(value, above, depth + 1)
                merged += found if isinstance(found, list) else [found]
                if not all(isinstance(m, dict) for m in merged):
                    raise InputError(f"{place}: << takes objects; write the keys themselves")
                continue
            if key.value in out:
                raise InputError(f"{place}: {key.value[:60]!r} stands twice; keep one of the two")
            self.lines.setdefault(name, key.start_mark.line + 1)
            out[key.value] = self.value(value, f"{name}.", depth + 1)
        for other in merged:
            assert isinstance(other, dict)
            out = {**other, **out}
        return out
