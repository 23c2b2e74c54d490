"""This script writes the reference from the code: docs/reference/verbs.md of the command line, docs/reference/python.md
of the Python way in.

    python tests/reference_pages.py            write both
    python tests/reference_pages.py --check    say which is not current, exit code 1

`tests/test_reference_pages.py` fails where a page is not what this script writes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import shardproof

if TYPE_CHECKING:
    import click

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- written by tests/reference_pages.py from the code; change the code, then run it -->\n"

FIRST = """\
`shardproof VERB --help` prints the same. Amounts of memory are written `80GiB` or `500MB`, shares `0.01` or `1%`, seconds
`60`. `--json` prints one JSON object on stdout instead of text; progress goes to stderr.
"""
CODES = """\
Exit codes: 0 done and proved, 5 undecided or a gap is left, 10 refuted, 20 proved infeasible, 2 usage, 3 bad input, 6 internal.
"""


def cell(text: str) -> str:
    """Text inside a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def prose(doc: str | None) -> str:
    """A docstring as Markdown: examples in fences, indented tables as they are."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")):
        if block.lstrip().startswith(">>>"):
            out.append(f"```pycon\n{inspect.cleandoc(block)}\n```")
        else:
            out.append(block)
    return "\n\n".join(out)


def described(path: str, command: click.Command) -> Iterator[str]:
    """One command: usage, help, arguments and options."""
    import click

    ctx = click.Context(command, info_name=f"shardproof {path}", help_option_names=["-h", "--help"])
    yield f"## {path}\n"
    yield f"    {' '.join(command.get_usage(ctx).removeprefix('Usage: ').split())}\n"
    yield prose(command.help) + "\n"
    rows = []
    for p in command.params:
        record = p.get_help_record(ctx)
        if record is not None:
            rows.append((cell(record[0]), cell(record[1])))
        elif isinstance(p, click.Argument):
            rows.append((cell(p.make_metavar(ctx)), "argument, needed" if p.required else "argument"))
    yield "| | |\n|---|---|"
    yield from (f"| `{name}` | {words} |" for name, words in rows)
    yield ""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb, and every word of those that have words, with its command."""
    import click

    from shardproof.__main__ import cli

    def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield path, command
            return
        ctx = click.Context(command, help_option_names=["-h", "--help"])
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from walk(f"{path} {name}".strip(), inner)

    yield from walk("", cli)


def verbs_page() -> str:
    """The reference of the command line."""
    lines = [NOTE, "# Verbs and options\n", FIRST, CODES]
    for path, command in commands():
        lines += described(path, command)
    return "\n".join(lines).rstrip() + "\n"


def signature(name: str, found: object) -> str:
    """`name(arguments) -> result` with annotations as they are written."""
    said = inspect.signature(found)  # type: ignore[arg-type]
    words, stars = [], {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for p in said.parameters.values():
        if p.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        if p.name != "self":
            kind = "" if p.annotation is p.empty else f": {p.annotation}"
            default = "" if p.default is p.empty else f" = {p.default!r}"
            words.append(f"{stars.get(p.kind, '')}{p.name}{kind}{default}")
    result = "" if said.return_annotation is said.empty else f" -> {said.return_annotation}"
    return f"{name}({', '.join(words)}){result}"


def wrapped(text: str) -> str:
    """A signature in a fence, an argument a line where it is long."""
    if len(text) <= 100:
        return f"```text\n{text}\n```"
    head, _, rest = text.partition("(")
    inside, _, result = rest.rpartition(")")
    arguments = re.split(r", (?=[*\w]+(?:: | = |,|$)|\*)", inside)
    return "```text\n" + f"{head}(\n" + "".join(f"    {a},\n" for a in arguments) + f"){result}\n```"


def members(kind: type) -> Iterator[str]:
    """Public properties and methods of a class, in the order written."""
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            getter = value.fget if isinstance(value, property) else value.func  # type: ignore[attr-defined]
            result = str(inspect.signature(getter).return_annotation).replace("'", "")
            yield f"`.{name}`: `{result}`  \n{prose(getter.__doc__)}\n"
        elif inspect.isfunction(value):
            yield wrapped(signature(f".{name}", value)) + f"\n\n{prose(value.__doc__)}\n"


def python_page() -> str:
    """The reference of the Python way in."""
    about = "Everything below is a name of `shardproof`; how it is used: [from Python](../python.md).\n"
    lines = [NOTE, "# Python\n", about]
    for name in sorted(shardproof.__all__, key=lambda n: (n.startswith("_"), n.lower())):
        if name in ("__version__", "torch"):
            continue
        found = getattr(shardproof, name)
        lines.append(f"## {name}\n")
        if inspect.isclass(found):
            lines += [prose(found.__doc__) + "\n", *members(found)]
        elif callable(found) and inspect.isfunction(found):
            lines += [wrapped(signature(name, found)) + "\n", prose(found.__doc__) + "\n"]
        elif name == "dace":
            lines += [prose(inspect.getmodule(type(found)).__doc__) + "\n", *members(type(found))]
        else:
            lines.append(f"`{name}[64, 784]` is the type of an array argument, `{name}` alone that of a number.\n")
    lines += torch_lines()
    return "\n".join(lines).rstrip() + "\n"


def torch_lines() -> Iterator[str]:
    """`shardproof.torch`, read from its text: it can be imported only where PyTorch is."""
    tree = ast.parse((ROOT / "backends" / "export" / "apply.py").read_text(encoding="utf-8"))
    yield "## torch\n"
    yield "`shardproof.torch`, loaded on first use; needs PyTorch.\n"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield wrapped(f"torch.{node.name}({ast.unparse(node.args)}){result}") + "\n"
            yield prose(ast.get_docstring(node)) + "\n"


PAGES = {"verbs.md": verbs_page, "python.md": python_page}


def main() -> int:
    """Command line."""
    old = []
    for name, page in PAGES.items():
        text, path = page(), FOLDER / name
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                old.append(name)
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if old:
        print(f"not current: {', '.join(old)}; run python tests/reference_pages.py")
    return 1 if old else 0


if __name__ == "__main__":
    raise SystemExit(main())
