"""Runs the notebooks of `examples/` without a notebook server, and keeps what they show in their files.

    python tests/notebooks.py           what differs from what the files hold
    python tests/notebooks.py write     the files with what their cells show now

A cell is Python in one namespace per notebook, run in an empty folder; lines that begin with `!` are commands of a
shell.  What it prints is a stream, the value of its last expression a result, as text and, where it has that, as HTML.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SHELL = 'shardproof() {{ "{python}" -m shardproof "$@"; }}\n{line}'


def executed(path: Path) -> dict[str, Any]:
    """The notebook with what its cells show now."""
    book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__", "_shell": _shell}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            count = 0
            for cell in book["cells"]:
                if cell["cell_type"] == "code":
                    count += 1
                    cell["outputs"], cell["execution_count"] = _outputs("".join(cell["source"]), names, count), count
        finally:
            os.chdir(before)
    return book


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    lines = (f"_shell({line[1:]!r})" if line.startswith("!") else line for line in source.splitlines())
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - our own files
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    out: list[dict[str, Any]] = []
    if text := shown.getvalue():
        out.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True), **data}
        out.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return out


def _shell(line: str) -> None:
    """Run a command; what it writes is shown, a status that is not 0 too."""
    command = SHELL.format(python=sys.executable, line=line)
    path = os.pathsep.join([str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    print(done.stdout, end="")
    if done.returncode:
        print(f"exit status {done.returncode}")


def text(book: dict[str, Any]) -> str:
    """A notebook as Jupyter writes it."""
    return json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(words: list[str]) -> None:
    """Command line."""
    for path in NOTEBOOKS:
        made = text(executed(path))
        if words == ["write"]:
            path.write_text(made, encoding="utf-8")
        elif made != path.read_text(encoding="utf-8"):
            print(f"{path.name} shows something else now")


if __name__ == "__main__":
    main(sys.argv[1:])
