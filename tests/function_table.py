"""The table of functions in docs/certificate-format/plans.md: what a checker of plans has to know of each.

python tests/function_table.py      writes the table again; `tests/test_certificate_format.py` compares
"""

from __future__ import annotations

from pathlib import Path

from shardproof.models.program.operators import FUNCTIONS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "certificate-format" / "plans.md"
START, END = "<!-- functions -->\n", "<!-- /functions -->"


def table() -> str:
    """One row per kind, flops per point and number of statistics."""
    rows: dict[tuple[str, int, int], list[str]] = {}
    for f in FUNCTIONS.values():
        rows.setdefault((f.kind.value, f.flops, len(f.statistics)), []).append(f.name)
    lines = ["| kind | flops per point | statistics | functions |", "|---|---:|---:|---|"]
    for (kind, flops, statistics), names in rows.items():
        lines.append(f"| {kind} | {flops} | {statistics} | {', '.join(f'`{n}`' for n in names)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(START)
    DOCUMENT.write_text(before + START + "\n" + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
