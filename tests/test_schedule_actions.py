"""Schedules as actions: every row is in order and complete, sends meet their receives; torch runs them unchanged."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from budgets import work

from shardproof.__main__ import run
from shardproof.formal.schedules.published import orders, starts_of, with_chunks
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.models.schedules.actions import action_rows
from shardproof.models.schedules.pipeline import Pipeline

JOB = Path(__file__).with_name("pipeline_job.py")
ACTION = re.compile(r"([0-9]+)(F|I|W|B|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]*)")
KINDS = ("gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-v", "dualpipe-v")


def rows_of(kind: str, pipe: Pipeline) -> tuple[Pipeline, list[list[str]]]:
    if kind == "best":
        return pipe, action_rows(pipe, search(shop(pipe), work(1.0)).starts)
    cut = with_chunks(kind, pipe)
    given = orders(kind, cut)
    return cut, action_rows(cut, starts_of(cut, given), given)


def executed(pipe: Pipeline, rows: list[list[str]]) -> Counter[str]:
    """Run the rows as a machine would that sends at once and receives in order; AssertionError where it stands still."""
    at, done, words = [0] * len(rows), set[str](), Counter[str]()
    channels: dict[tuple[int, int], list[str]] = {}
    posted: dict[tuple[int, int], list[str]] = {}
    while any(k < len(row) for k, row in zip(at, rows, strict=True)):
        moved = False
        for device, row in enumerate(rows):
            while at[device] < len(row):
                match = ACTION.fullmatch(row[at[device]])
                assert match, row[at[device]]
                part, word, i = int(match[1]), match[2], match[3]
                if word.startswith("SEND"):
                    target = part + 1 if word == "SEND_F" else part - 1
                    other = pipe.device(target)
                    assert f"{part}{'F' if word == 'SEND_F' else ''}{i}" in done or word == "SEND_B"
                    channels.setdefault((device, other), []).append(f"{target}RECV_{word[-1]}{i}")
                elif word.startswith("RECV"):
                    source = pipe.device(part - 1 if word == "RECV_F" else part + 1)
                    posted.setdefault((source, device), []).append(row[at[device]])
                elif word in "FIB":
                    before = part - 1 if word == "F" else part + 1
                    if 0 <= before < pipe.parts:
                        if pipe.device(before) != device:
                            name = f"{part}RECV_{'F' if word == 'F' else 'B'}{i}"
                            channel = (pipe.device(before), device)
                            assert name in posted.get(channel, []), f"{row[at[device]]} without a receive"
                            number = posted[channel].index(name)
                            if number >= len(channels.get(channel, [])):
                                break  # not sent yet
                            assert channels[channel][number] == name, "received in another order than sent"
                        else:
                            assert f"{before}{'F' if word == 'F' else 'back'}{i}" in done
                    done.add(f"{part}F{i}" if word == "F" else f"{part}back{i}")
                elif word == "W":
                    assert f"{part}back{i}" in done
                words[word] += 1
                at[device] += 1
                moved = True
        assert moved, [row[k:][:1] for k, row in zip(at, rows, strict=True)]
    return words


@pytest.mark.parametrize("kind", ["best", *KINDS])
@pytest.mark.parametrize(("stages", "micro", "send"), [(1, 2, 0), (2, 4, 0), (4, 8, 1), (3, 7, 2)])
def test_rows_run_to_their_end(kind: str, stages: int, micro: int, send: int) -> None:
    micro = micro if kind != "interleaved:2" else stages * 2
    times = tuple((1 + s % 2, 2, 1) for s in range(stages))
    pipe, rows = rows_of(kind, Pipeline(times, micro, send, None))
    words = executed(pipe, rows)
    whole = pipe.parts * micro
    assert words["F"] == whole and words["B"] + words["I"] == whole and words["I"] == words["W"]
    hops = sum(pipe.device(k) != pipe.device(k + 1) for k in range(pipe.parts - 1)) * micro
    assert words["SEND_F"] == words["RECV_F"] == words["SEND_B"] == words["RECV_B"] == hops
    assert words["UNSHARD"] == words["RESHARD"] == words["REDUCE_GRAD"] == pipe.parts


def test_backwards_without_weights_are_one_piece() -> None:
    pipe = Pipeline(((1, 2, 0),) * 2, 3, 0, None)
    words = executed(*rows_of("best", pipe))
    assert words["B"] == 6 and words["I"] == words["W"] == 0


def test_the_command_line_writes_actions(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    line = ["schedule", "--stages", "2", "--micro-batches", "3", "--times", "1,1,1", "--kind", "zb-v", "--csv"]
    assert run([*line, str(path)]) in (0, 5, 10)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    executed(with_chunks("zb-v", Pipeline(((1, 1, 1),) * 2, 3, 0, None)), rows)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["best", "1f1b", "interleaved:2", "zb-v"])
def test_torch_runs_the_actions_unchanged(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "actions.csv"
    line = ["schedule", "--stages", "4", "--micro-batches", "8", "--times", "1,1,1", "--memory", "8", "--kind", kind]
    assert run([*line, "--csv", str(path)]) in (0, 5, 10)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(JOB), str(path), "4", "8", str(tmp_path / "store")],
        capture_output=True,
        check=False,
        text=True,
        timeout=500,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 4 and all(f["gradient"] < 1e-12 for f in found), found
    assert next(f["loss"] for f in found if f["loss"] is not None) < 1e-12
