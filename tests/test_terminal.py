"""Nothing that stands in a file reaches a terminal as a control character."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shardproof.models.terminal.console import say
from shardproof.models.text import Lines, escape_text, join_lines

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("models", "proofs", "formal", "verify", "backends")
SPEAKS = {
    "models/terminal/console.py",
    "backends/export/reduce_jax_runtime.py",
    "backends/export/reduce_torch_runtime.py",
}
"""The one file that writes to stdout and stderr, and text that is copied into exported files, which run without us."""


def test_text_leaves_in_one_place() -> None:
    """`click.echo`, `print` and `sys.stdout.write` would write names out of files as they are."""
    bad = []
    for path in [ROOT / "__main__.py", *(f for room in ROOMS for f in sorted((ROOT / room).rglob("*.py")))]:
        place = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if place in SPEAKS or not any(word in text for word in ("echo", "print(", "sys.std")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "click.echo",
                "click.secho",
                "click.echo_via_pager",
                "print",
                "rich.print",
                "sys.stdout.write",
                "sys.stderr.write",
                "sys.stdout.writelines",
            ):
                bad.append(f"{place}:{node.lineno}: {ast.unparse(node.func)}")
    assert not bad, f"write this with models.terminal.console.say, which escapes what stands in files: {bad}"


@pytest.mark.parametrize(
    "code",
    [*range(0x20), 0x7F, *range(0x80, 0xA0), 0xAD, 0x200B, 0x2028, 0x2029, 0x202E, 0x2066, 0xD800, 0xFEFF, 0xE0001],
)
def test_what_no_terminal_prints_is_escaped(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"a{chr(code)}proved"
    assert escape_text(text).isprintable() and escape_text(text) != text
    say(text, f"  {text}", join_lines([text, text]))
    say(text, err=True)
    seen = capsys.readouterr()
    assert seen.out.count("\n") == 4 and seen.err.count("\n") == 1
    assert all(line.isprintable() for line in (seen.out + seen.err).split("\n"))


def test_text_that_prints_stays_and_blocks_are_escaped_once() -> None:
    for text in ("", "Größe 漢字 🙂 λ", "C:\\x1b", "layer0.q"):
        assert escape_text(text) == text
    inner = join_lines(["a\nb", "c"])
    assert inner == "a\\nb\nc" and join_lines([inner, "d\n"]) == "a\\nb\nc\nd\\n"
    assert not isinstance(inner + "\n", Lines) and not isinstance(inner.strip(), Lines)


def test_letters_that_the_terminal_lacks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("漢 proved")
    sys.stdout.flush()
    assert raw.getvalue() == b"\\u6f22 proved\n"
