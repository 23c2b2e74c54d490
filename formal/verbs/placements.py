"""The verb `rules dtensor`: which placements of operands and results are right for an operator, for all sizes.

What is printed about a rule is what the checker said of its proof: judgements are published first.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import click

from ...models.sources.rules.placements import REDUCTIONS, TABLE, PlacementRule, placed_operator, placement_rules
from ...models.sources.specified.known import read_specification
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import force_option, json_option, options_as, output_option, refuse_combinations
from ...models.text import InputError
from ...proofs.publishing.publisher import Publisher
from ...proofs.rewrites.judgement import Judgement, Refuted
from ...proofs.rewrites.library import Library
from ..rewriting.rule_files import RuleItem, judge_items
from .combinations import DTENSOR
from .rewrites import RULE_S, counterexample_document, jobs_option, limits, own_operators
from .search_options import clock_of


@dataclass(frozen=True)
class DtensorOptions:
    """The command line of `rules dtensor`."""

    only: str
    operators: tuple[Path, ...]
    reduction: str
    time_limit: float | None
    work_limit: int | None
    jobs: int
    output: Path | None
    as_json: bool


@click.command("dtensor")
@click.option("--only", default="*", show_default=True, help="Operators with names like this, such as 'aten.mm*'.")
@own_operators
@click.option(
    "--partial",
    "reduction",
    type=click.Choice(REDUCTIONS),
    default="sum",
    show_default=True,
    help="What Partial adds up to; with another than the sum only rules that have it are judged.",
)
@limits
@jobs_option
@output_option("-o", "--output", help="Write rules and proofs here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(DTENSOR)
@options_as(DtensorOptions)
def dtensor_command(publisher: Publisher, options: DtensorOptions) -> int:
    """Judge every placement of PyTorch's DTensor on operators of ATen, or on those of --operator: proved for all
    sizes, or refuted with numbers.

    A rule says that operands placed so (Replicate, Shard, Partial) give a result placed so, where every rank
    applies the operator to what it has.
    """
    start = time.monotonic()
    table = tuple(placed_operator(read_specification(path)) for path in options.operators) or TABLE
    asked = [p for p in placement_rules(table, options.reduction) if fnmatch(p.placed.aten, options.only)]
    if not asked:
        known = ", ".join(dict.fromkeys(p.placed.aten for p in placement_rules(table)))
        raise InputError(f"--only {options.only!r}: no operator has such a name; known are {known}")
    items = tuple(RuleItem(k, p.rule.name, (p.rule,)) for k, p in enumerate(asked))
    with Watch("judging placements") as watch:
        limit = clock_of(options.time_limit, options.work_limit, RULE_S).allowance()
        judged = [one for (one,) in judge_items(items, limit, options.jobs, watch.count)]
        words = publisher.rules(options.output, Library("placements of DTensor", tuple(judged), (), "rules dtensor"))
    counts = Counter(words[p.rule.name] for p in asked)
    seconds = time.monotonic() - start
    if options.as_json:
        documents = [_document(p, words[p.rule.name], j) for p, j in zip(asked, judged, strict=True)]
        emit({"rules": documents, "counts": dict(sorted(counts.items())), "seconds": round(seconds, 3)})
    else:
        for placed in dict.fromkeys(p.placed for p in asked):
            say(f"{placed.name} of {' and '.join(f'rank {r}' for r in placed.ranks)}")
            for p, j in zip(asked, judged, strict=True):
                if p.placed == placed and words[p.rule.name] != "refuted":
                    say(f"  {', '.join(p.reads)} -> {p.writes}: {words[p.rule.name]}{_condition(p, j)}")
        said = ", ".join(f"{n} {w}" for w, n in sorted(counts.items()))
        say(f"{said}; {seconds:.1f} s" + (f"; wrote {options.output}" if options.output else ""))
    return Exit.UNDECIDED if counts["undecided"] else Exit.DONE


def _condition(p: PlacementRule, judgement: Judgement) -> str:
    """What a proof needs beside what cuts of one axis at one place say."""
    more = [str(c) for c in judgement.rule.preconditions if c not in p.rule.preconditions]
    return f" if {', '.join(more)}" if more else ""


def _document(p: PlacementRule, word: str, judgement: Judgement) -> dict[str, object]:
    out: dict[str, object] = {
        "operator": p.placed.name,
        "ranks": list(p.placed.ranks),
        "reads": list(p.reads),
        "writes": p.writes,
        "verdict": word,
    }
    if word == "proved":
        out["preconditions"] = [str(c) for c in judgement.rule.preconditions]
    if isinstance(judgement, Refuted) and word == "refuted":
        out["counterexample"] = counterexample_document(judgement.rule, judgement.counterexample)
    return out
