"""One page that says of every benchmark what was asked, what its page of results says, and whether that is enough.

    python tests/benchmarks/tracker.py [--page]

Nothing is measured here.  A figure is read out of the page of `results/` that the benchmark's own command has written, and
compared with the bar in `BARS`; where a page is written anew, the tracker says what is in it.  A figure that is no longer
found in its page is an error, not a row.  Pages without a bar are listed below with their commands.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = RESULTS / "tracker.md"

Figures = Sequence[float]


@dataclass(frozen=True)
class Bar:
    """`figures`: an expression whose groups are the numbers of a page, in all places that it fits; `words`: how they are
    shown, `{0}` the first; `holds`: whether they are enough.
    """

    page: str
    what: str
    asked: str
    figures: str
    words: str
    holds: Callable[[Figures], bool]

    def measured(self, text: str) -> Figures:
        """The numbers in a page's text.  Raises `ValueError` if there are none."""
        found = [g for m in re.finditer(self.figures, text, re.MULTILINE) for g in m.groups() if g is not None]
        if not found:
            raise ValueError(f"{self.page}.md: nothing fits {self.figures!r} ({self.what})")
        return [float(g.replace(",", "")) for g in found]


def at_most(limit: float, figures: Figures) -> bool:
    """Whether no figure is above the limit.

    >>> at_most(10, [8.5]), at_most(10, [8.5, 12])
    (True, False)
    """
    return max(figures) <= limit


def at_least(limit: float, figures: Figures) -> bool:
    """Whether no figure is below the limit."""
    return min(figures) >= limit


def share(limit: float, figures: Figures) -> bool:
    """Whether the first figure is at least this share of the second."""
    return figures[0] >= limit * figures[1]


def within(limit: float, figures: Figures) -> bool:
    """Whether no figure is further from zero."""
    return max(map(abs, figures)) <= limit


_STEPS = r"^\| all \| \d+ \| "
_EAGER = r"^\| \w+ \| (?:{}) \| [^|]+ \| (?:[\d.]+ \| ){{3,4}}([\d.]+) \([^|]*\| ([\d.]+) \("
"""Behind the times, of three or four, the ratios of both libraries, with their ranges."""


def best_of_pairs(limit: float, figures: Figures) -> bool:
    """Whether the smaller figure of every pair is within the limit."""
    return all(min(pair) <= limit for pair in zip(figures[::2], figures[1::2], strict=True))


BARS = (
    Bar(
        "published-steps", "mean error of published steps", "10 %", _STEPS + r"([\d.]+)%", "{0} %", partial(at_most, 10)
    ),
    Bar(
        "published-steps",
        "worst error of published steps",
        "25 %",
        _STEPS + r"[\d.]+% \| ([\d.]+)%",
        "{0} %",
        partial(at_most, 25),
    ),
    Bar(
        "published-steps",
        "rank correlation inside groups",
        "0.95",
        _STEPS + r"[\d.]+% \| [\d.]+% \| ([\d.]+)",
        "{0}",
        partial(at_least, 0.95),
    ),
    Bar(
        "published-pairs",
        "published pairs decided wrongly",
        "0",
        r"^\| all \| \d+ \| \d+ \(\d+%\) \| (\d+)",
        "{0}",
        partial(at_most, 0),
    ),
    Bar(
        "published-pairs",
        "published pairs decided",
        "half",
        r"^\| all \| \d+ \| \d+ \((\d+)%\)",
        "{0} %",
        partial(at_least, 50),
    ),
    Bar(
        "flop-utilisation",
        "five published jobs, plan in a row beside the step",
        "within 10 %",
        r"\(([+-]\d+) %\) \| [\d.]+ s, [\d.]+ % \([+-]\d+ %\) \| (?:yes|no)",
        "{all} %",
        partial(within, 10),
    ),
    Bar(
        "rank-correlation",
        "orders executed: rank correlation with the prediction",
        "0.95",
        r"^\| `\w+ --ranks \d --pace \d` \| ([\d.]+)",
        "{all}",
        partial(at_least, 0.95),
    ),
    Bar(
        "predicted-measured",
        "models with rank correlation 0.8 and the best within 15 %",
        "6 of 6",
        r"reached by (\d) of 6 models\).*reached by (\d) of 6",
        "{0} and {1} of 6",
        partial(at_least, 6),
    ),
    Bar(
        "recorded-job",
        "steps of a recorded job replayed within 1 %",
        "95 %",
        r"all (\d+) steps to the last digit of the record",
        "{0} of 32",
        partial(at_least, 0.95 * 32),
    ),
    Bar(
        "eager-steps",
        "one rank beside PyTorch eager, the better library",
        "1.1 times",
        _EAGER.format("1"),
        "{pairs}",
        partial(best_of_pairs, 1.1),
    ),
    Bar(
        "eager-steps",
        "two and four ranks beside DDP, the better library",
        "1.2 times",
        _EAGER.format("2|4"),
        "{pairs}",
        partial(best_of_pairs, 1.2),
    ),
    Bar(
        "array-speed",
        "array programs at most as long as NumPy",
        "12 of 15",
        r"At most 1.0: (\d+) of (?:\d+) beside NumPy",
        "{0} of 15",
        partial(at_least, 12),
    ),
    Bar(
        "array-speed",
        "array programs at most as long as JAX",
        "12 of 15",
        r"beside NumPy, (\d+) of (?:\d+) beside JAX",
        "{0} of 15",
        partial(at_least, 12),
    ),
    Bar(
        "training-curves",
        "float64 curves, difference from one process",
        "1e-9",
        r"\| ([\d.]+e-\d+) \| ([\d.]+e-\d+) \| ([\d.]+e-\d+) \| yes",
        "{most}",
        partial(at_most, 1e-9),
    ),
    Bar(
        "equal-mutants",
        "mutants called equal though numbers differ",
        "0",
        r"though numbers differ: \*\*(\d+)\*\*",
        "{0}",
        partial(at_most, 0),
    ),
    Bar(
        "equal-growth",
        "a proof for 126 layers on 512 ranks, processor s",
        "600",
        r"^\| 126 \| 512 \| \d+ \| equal \| \d+ \| \d+ \| [\d.]+ \| ([\d.]+) \| ",
        "{0}",
        partial(at_most, 600),
    ),
    Bar(
        "library-rules",
        "rules of the libraries that fire on models",
        "200",
        r"^(\d+) rules fire",
        "{0}",
        partial(at_least, 200),
    ),
    Bar(
        "cost-function-networks",
        "processor time beside toulbar2, median",
        "10 times",
        r"ours takes ([\d.]+) times its\s+processor seconds in the median",
        "{0} times",
        partial(at_most, 10),
    ),
    Bar(
        "cost-function-networks",
        "proved of what toulbar2 proves",
        "all",
        r"(\d+) by toulbar2, (\d+) by both",
        "{1} of {0}",
        lambda f: f[1] >= f[0],
    ),
    Bar(
        "import-comparison",
        "imports compared in a third more time",
        "10 of 10",
        r"^\| [^|]+ \| [^|]+ \| [\d.]+ \| [\d.]+ \| (-?\d+)% ",
        "at most {most} %",
        partial(at_most, 33),
    ),
    Bar(
        "time-limits",
        "commands that end within 1.1 S + 10 s, quiet",
        "29 of 29",
        r"rows are in the table: (\d+) of 29",
        "{0} of 29",
        partial(at_least, 29),
    ),
    Bar(
        "sweep-workers",
        "rows of a sweep whose worker is killed",
        "40",
        r"SIGKILL \| (\d+) \| \d+ \| 1 \| yes",
        "{all}",
        partial(at_least, 40),
    ),
    Bar(
        "checker-mutants",
        "mutants of checkers that their nearest tests notice, before and after long functions were split",
        "not lower",
        r"^\| [0-9a-f]{10} \| [\d,]+ \| \d+ \| \d+ \| ([\d.]+) % \|",
        "{0} -> {1} %",
        lambda f: f[-1] >= f[0],
    ),
    Bar(
        "pipelined",
        "BERT-Large, everything together: gap",
        "3 %",
        r"together, all pairs \| [^|]*, ([\d.]+)%",
        "{0} %",
        partial(at_most, 3),
    ),
)


def shown(bar: Bar, figures: Figures) -> str:
    """The figures of a bar in words."""
    text = [f"{f:g}" for f in figures]
    pairs = ", ".join(f"{min(p):g}" for p in zip(figures[::2], figures[1::2], strict=False))
    return bar.words.format(*text, all=", ".join(text), most=f"{max(figures):g}", pairs=pairs)


def title(text: str) -> str:
    """The first line of a page."""
    return text.splitlines()[0].lstrip("# ").rstrip(".")


def command(text: str) -> str:
    """The command that a page names first."""
    found = re.search(r"`?(python tests/[^`\n|]+)", text)
    return found.group(1).strip().rstrip(".") if found else ""


def written(page: Path) -> str:
    """Commit and date of a page, by git."""
    line = ["git", "log", "-1", "--format=%h %cs", "--", str(page)]
    return subprocess.run(line, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()


def pages() -> dict[str, str]:
    """Name -> text of every page of results but this one."""
    return {p.stem: p.read_text(encoding="utf-8") for p in sorted(RESULTS.glob("*.md")) if p != PAGE}


def rows() -> list[tuple[str, str, str, str, str]]:
    """(page, what, asked, measured, met or short) of every bar."""
    texts, out = pages(), []
    for bar in BARS:
        figures = bar.measured(texts[bar.page])
        out.append((bar.page, bar.what, bar.asked, shown(bar, figures), "met" if bar.holds(figures) else "**short**"))
    return out


def text() -> str:
    """The page."""
    texts, judged = pages(), rows()
    short = sum(row[-1] != "met" for row in judged)
    out = ["# What was asked, and what was measured", ""]
    out += [
        "`python tests/benchmarks/tracker.py --page` reads the figures out of the pages beside it, which their own commands"
    ]
    out += [
        f"wrote, and compares them with the bars. {len(judged) - short} of {len(judged)} are met, {short} are short.",
        "",
    ]
    out += ["| what | asked | measured | | page | written |", "|---|---|---|---|---|---|"]
    for name, what, asked, measured, verdict in judged:
        out.append(
            f"| {what} | {asked} | {measured} | {verdict} | [{name}]({name}.md) | {written(RESULTS / f'{name}.md')} |"
        )
    out += ["", "## Pages and their commands", "", "| page | what | command |", "|---|---|---|"]
    for name, page in texts.items():
        out.append(f"| [{name}]({name}.md) | {title(page)} | `{command(page)}` |")
    return "\n".join([*out, ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--page"]:
        PAGE.write_text(text(), encoding="utf-8")
    sys.stdout.write(text())
