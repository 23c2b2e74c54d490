"""Where memory ends in a check, the file is not called malformed, and nothing is said about its claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.models.terminal.console import Exit


@pytest.mark.parametrize(
    ("options", "decoder"),
    [((), "verify.plan.plan.decode_plan"), (("--overlap",), "verify.overlap.certificate.decode_overlap")],
)
def test_a_check_without_room_says_so(
    options: tuple[str, ...],
    decoder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(tmp_path / "p.spz")
    assert run(["plan", "mlp-unity:batch=64", "--machine", "localhost:2", *options, "-o", path]) in (
        Exit.DONE,
        Exit.UNDECIDED,
    )

    def ends(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(f"shardproof.{decoder}", ends)
    capsys.readouterr()
    assert run(["check", path]) == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert "more memory than this process gets" in said and "malformed" not in said
