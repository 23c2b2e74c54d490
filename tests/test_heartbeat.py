"""Signs of life over UDP: what a watch writes down, what it leaves alone, and when a guard is cut off."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardproof.backends.execution import heartbeat, progress
from shardproof.backends.execution.heartbeat import REFUSED, Beat, Voice, Watch, error_word, meeting_from
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.job import read_error

BEAT = Beat(rank=1, process=77, at=5, step=3, stopped_s=0.0)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    progress.create(tmp_path, 2)
    np.full(2, 1, dtype=np.int64).tofile(tmp_path / "at.bin")
    with Watch(tmp_path, 30.0) as made:
        yield made


def settled(voice: Voice, beat: Beat = BEAT) -> None:
    """Beat until the watch has answered."""
    before = voice.heard_s
    for _ in range(100):
        voice.beat(beat)
        if voice.heard_s > before:
            return
        time.sleep(0.02)
    raise AssertionError("no answer")


def test_a_beat_is_written_down_at_the_clock_of_the_watch(watch: Watch, tmp_path: Path) -> None:
    voice = Voice(watch.meeting)
    settled(voice)
    settled(voice, replace(BEAT, stopped_s=4.0))
    assert progress.open_table(tmp_path).tolist() == [[0, progress.START], [77, 5]]
    assert np.fromfile(tmp_path / "at.bin", dtype=np.int64).tolist() == [1, 3]
    last, since = progress.open_beats(tmp_path)[1]
    assert abs(time.monotonic() - last) < 5 and abs(last - since - 4.0) < 1e-3
    assert progress.open_beats(tmp_path)[0].tolist() == [0, 0] and not voice.is_cut_off and voice.ended == 0


def test_words_are_kept_and_the_first_one_wins(watch: Watch, tmp_path: Path) -> None:
    voice = Voice(watch.meeting)
    assert voice.tell(error_word(RankError(1, "step 3", "x" * 5000)), 5.0)
    assert voice.tell(error_word(RankError(0, "step 4", "later")), 5.0)
    found = read_error(tmp_path)
    assert found is not None and (found.rank, found.place, len(found.reason)) == (1, "step 3", 2000)
    assert voice.tell({"kind": "death", "rank": 1, "process": 77, "status": -9}, 5.0)
    assert progress.read_death(tmp_path) == progress.Death(77, -9, 1)
    assert progress.Death(77, -9, 1).rank_in([77, 5]) == 1, "processes of two computers may have one number"
    assert voice.tell({"kind": "refused", "rank": 0, "reason": "why"}, 5.0)
    assert (tmp_path / REFUSED).read_text() == "why"


def test_nonsense_is_left_alone_and_the_watch_goes_on(watch: Watch, tmp_path: Path) -> None:
    meeting = watch.meeting
    good = {"token": meeting.token, "kind": "beat", "rank": 1, "process": 7, "at": 1, "step": 1, "stopped_s": 0.0}
    wrong: list[bytes] = [
        b"",
        b"\xff" * 9000,
        b"[1]",
        b"[" * 5000,
        b"null",
        json.dumps({**good, "token": "a"}).encode(),
    ]
    wrong += [json.dumps({k: v for k, v in good.items() if k != key}).encode() for key in good]
    for change in (
        {"rank": 2},
        {"rank": -1},
        {"rank": "x"},
        {"rank": 10**30},
        {"process": 10**30},
        {"at": None},
        {"stopped_s": "much"},
        {"kind": "what"},
        {"kind": ["beat"]},
        {"token": 5},
    ):
        wrong.append(json.dumps({**good, **change}).encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in wrong:
            with_room = data[:60_000]
            sender.sendto(with_room, ("127.0.0.1", meeting.port))
    settled(Voice(meeting), replace(BEAT, rank=0))
    assert progress.open_table(tmp_path).tolist() == [[77, 5], [0, progress.START]]
    assert read_error(tmp_path) is None and progress.read_death(tmp_path) is None


def test_guards_hear_that_the_job_has_ended(watch: Watch) -> None:
    one, late = Voice(watch.meeting), Voice(watch.meeting)
    settled(one)
    watch.end(6)
    settled(late, replace(BEAT, rank=0))
    for _ in range(100):
        one.beat(BEAT)
        time.sleep(0.01)
    assert (one.ended, late.ended) == (6, 6)


def test_a_guard_that_hears_nothing_is_cut_off_after_the_time_out(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    alone = Voice(replace(watch.meeting, port=1, limit_s=3.0))
    now[0] += 3.0 + heartbeat.FIRST_S
    assert not alone.is_cut_off
    now[0] += 0.1
    assert alone.is_cut_off and not alone.tell({"kind": "beat"}, 0.0)


def test_answers_of_others_are_no_answers(watch: Watch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(5)
        voice = Voice(replace(watch.meeting, addresses=("127.0.0.1",), port=other.getsockname()[1]))
        before = voice.heard_s
        voice.beat(BEAT)
        _, sender = other.recvfrom(9000)
        other.sendto(b'{"token": "guessed", "status": 6}', sender)
        other.sendto(json.dumps({"token": watch.meeting.token, "status": "6"}).encode(), sender)
        time.sleep(0.1)
        voice.beat(BEAT)
        assert (voice.heard_s, voice.ended) == (before, 0)


def test_a_meeting_is_what_was_written(watch: Watch) -> None:
    from dataclasses import asdict

    assert meeting_from(json.loads(json.dumps(asdict(watch.meeting)))) == watch.meeting
    assert watch.meeting.addresses[-1].startswith("127.")
