"""The page of what was asked and measured: it says what the pages of results say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import tracker


def test_the_page_is_what_the_results_say() -> None:
    """Commits and dates of pages are git's, and are not compared."""
    page = tracker.PAGE.read_text(encoding="utf-8").splitlines()
    for name, what, asked, measured, verdict in tracker.rows():
        row = f"| {what} | {asked} | {measured} | {verdict} | [{name}]({name}.md) |"
        assert any(line.startswith(row) for line in page), f"{row}: python tests/benchmarks/tracker.py --page"


def test_every_page_of_results_is_listed() -> None:
    page = tracker.PAGE.read_text(encoding="utf-8")
    listed = page[page.index("## Pages") :]
    assert not [name for name in tracker.pages() if f"| [{name}]({name}.md) |" not in listed]


def test_every_page_names_its_command() -> None:
    assert not [name for name, text in tracker.pages().items() if not tracker.command(text)]


def test_a_figure_that_is_gone_is_an_error() -> None:
    bar = tracker.BARS[0]
    with pytest.raises(ValueError, match=r"published-steps.*nothing fits"):
        bar.measured("# A page that says nothing")


@pytest.mark.parametrize(
    ("page", "row", "holds"),
    [
        ("published-steps", "| all | 1026 | 8.5% | 25.0% | 0.950 | -6.7% |", [True, True, True]),
        ("published-steps", "| all | 1026 | 10.1% | 25.1% | 0.949 | -6.7% |", [False, False, False]),
        ("array-speed", "At most 1.0: 12 of 15 beside NumPy, 11 of 15 beside JAX.", [True, False]),
        ("equal-mutants", "`x`: equal though numbers differ: **1**.", [False]),
        (
            "cost-function-networks",
            "54 by toulbar2, 54 by both; ours takes 10.1 times its\nprocessor seconds in the median",
            [False, True],
        ),
    ],
)
def test_bars_hold_where_they_should(page: str, row: str, holds: list[bool]) -> None:
    bars = [b for b in tracker.BARS if b.page == page]
    assert [b.holds(b.measured(row)) for b in bars] == holds
