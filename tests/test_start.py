"""Ctrl-C while modules are still being loaded: exit 5 with a word, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HOOK = textwrap.dedent("""
    import os, signal, sys

    class Interrupter:
        def find_spec(self, name, path=None, target=None):
            if name == os.environ["INTERRUPT_AT"] and not os.environ.get("INTERRUPTED"):
                os.environ["INTERRUPTED"] = "1"
                os.kill(os.getpid(), signal.SIGINT)
            return None

    sys.meta_path.insert(0, Interrupter())
""")
"""A sitecustomize that presses Ctrl-C when a module is looked for."""


@pytest.mark.parametrize(
    ("module", "start"),
    [
        (m, "module")
        for m in (
            "click",
            "click.core",
            "shardproof.models.terminal.console",
            "shardproof.formal.verbs.plan",
            "numpy",
            "shardproof.models.cost.cost",
        )
    ]
    + [("click", "script"), ("numpy", "script")],
)
def test_interrupted_at_an_import(module: str, start: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    script = tmp_path / "shardproof"
    script.write_text(
        "import sys\nfrom shardproof.__main__ import main\nsys.exit(main())\n"
    )  # what pip makes of [project.scripts]
    root = Path(sys.executable)
    call = [str(root), "-m", "shardproof"] if start == "module" else [str(root), str(script)]
    done = subprocess.run(
        [*call, "plan", "bert-large", "--machine", "cloud-a100:4x8", "-o", "p.spz", "--json"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "INTERRUPT_AT": module, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done
    assert (
        done.stderr.startswith("error: interrupted") and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    )
    assert json.loads(done.stdout)["exit"] == 5 and not (tmp_path / "p.spz").exists()


def test_importing_the_front_door_changes_no_signal() -> None:
    code = "import signal, sys; sys.argv = ['somebody']; import shardproof.__main__ as m; m.run(['machine', 'show']); " \
           "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"  # fmt: skip
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=120, check=False).returncode
        == 0
    )
