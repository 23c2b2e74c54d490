"""Batches of small real data for training runs: they depend on the number of the step alone (`run --data FILE.py:NAME`).

letters    16 windows of 32 bytes of a text, and what follows each byte
digits     16 handwritten digits, every pixel drawn as 4 x 4 on three channels
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent / "data/training"
BATCH, SEQUENCE = 16, 32


@cache
def _text() -> np.ndarray:
    return np.frombuffer((DATA / "text.txt").read_bytes(), np.uint8).astype(np.int32)


@cache
def _digits() -> np.ndarray:
    return np.loadtxt(DATA / "digits.csv", delimiter=",", dtype=np.int32)


def letters(step: int) -> dict[str, np.ndarray]:
    """Words and labels of a step."""
    text = _text()
    start = np.random.default_rng((1, step)).integers(0, len(text) - SEQUENCE, (BATCH, 1))
    window = text[start + np.arange(SEQUENCE + 1)]
    return {"words": window[:, :-1], "labels": window[:, 1:]}


def digits(step: int) -> dict[str, np.ndarray]:
    """Images and labels of a step."""
    rows = _digits()[np.random.default_rng((2, step)).integers(0, len(_digits()), BATCH)]
    image = rows[:, :-1].reshape(BATCH, 1, 8, 8).repeat(4, 2).repeat(4, 3).repeat(3, 1) / 8.0 - 1.0
    return {"image": image, "labels": rows[:, -1]}
