"""The verbs `rules prove`, `rules refute`, `rules generate` and `rules derive`.  `rules show` is in
`formal.verbs.rules_show`, `rules check` is the checker's (`verify.verbs.rules`).

What they print about a rule is what the checker said of its proof: judgements are published first.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import click

from ...models.rewrites.forced import at_degree_one_only, forced_texts, forced_values
from ...models.rewrites.rule import Substitution
from ...models.rewrites.specified_rows import SPECIFIED
from ...models.rewrites.terms import sides_text
from ...models.sources.rules.parallel import way_points
from ...models.sources.specified.known import read_specification
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    THREADS,
    Count,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
)
from ...models.text import InputError
from ...proofs.container.canonical import ContainerError
from ...proofs.publishing.publisher import Publisher
from ...proofs.rewrites.derivation import derivation_text
from ...proofs.rewrites.judgement import Counterexample, Judgement, Proved, Refuted, Undecided, Vacuous, shown_cases
from ...proofs.rewrites.library import Library, read_library
from ..rewriting.derive import Deriver
from ..rewriting.generate import check_journal, generate, judge_readings
from ..rewriting.picture import counterexample_text
from ..rewriting.pools import POOLS, UNITYS, operator_pool
from ..rewriting.rule_files import RuleItem, judge_items, load_rules, overall
from .combinations import DERIVE, GENERATE, PROVE, REFUTE
from .search_options import clock_of, limit_options

RULE_S = 20.0

file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
limits = limit_options("CPU seconds per rule.", RULE_S)
jobs_option = click.option(
    "--jobs", type=THREADS, default=min(2, os.cpu_count() or 1), show_default=True, help="Processes."
)
degree_option = click.option(
    "--degree", default=None, help="Instead of the degrees in the file: a number, or 'any' for every degree."
)
own_operators = click.option(
    "--operator",
    "operators",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="A specification (TOML) of an operator of your own: docs/howto/operators.md.",
)
CODES = {"proved": Exit.DONE, "vacuous": Exit.DONE, "refuted": Exit.REFUTED, "undecided": Exit.UNDECIDED}


@dataclass(frozen=True)
class ProveOptions:
    """The command line of `rules prove` and `rules refute`."""

    file: Path
    time_limit: float | None
    work_limit: int | None
    jobs: int
    degree: str | None
    output: Path | None
    as_json: bool


@click.command("prove")
@file_argument
@limits
@jobs_option
@degree_option
@output_option("-o", "--output", help="Write rules and proofs here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(PROVE)
@options_as(ProveOptions)
def prove_command(publisher: Publisher, options: ProveOptions) -> int:
    """Judge every rule of a file: proved (for all shapes, with preconditions), refuted (with a counterexample) or
    vacuous.

    FILE: FlexFlow's JSON, TASO's protobuf or axioms, a library (.spz), a specification of an operator (.toml), whose
    form promises rules, or the word `parallel` for the built-in properties.
    """
    return _prove(publisher, options, only_refuted=False)


@click.command("refute")
@file_argument
@limits
@jobs_option
@degree_option
@output_option("-o", "--output", help="Write rules and counterexamples here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(REFUTE)
@options_as(ProveOptions)
def refute_command(publisher: Publisher, options: ProveOptions) -> int:
    """Like prove, but print the rules that fail, each with its counterexample."""
    return _prove(publisher, options, only_refuted=True)


def _prove(publisher: Publisher, options: ProveOptions, *, only_refuted: bool) -> int:
    """Judge, publish, and print what the checker said; `only_refuted`: of the rules that fail."""
    start = time.monotonic()
    items = load_rules(options.file, _degree(options.degree))
    with Watch(f"judging {options.file.name}") as watch:
        limit = clock_of(options.time_limit, options.work_limit, RULE_S).allowance()
        judged = list(judge_items(items, limit, options.jobs, watch.count))
        library = Library(options.file.name, tuple(j for js in judged for j in js), (), "rules prove")
        words = publisher.rules(options.output, library)
    seconds = time.monotonic() - start
    documents, codes = [], []
    for item, judgements in zip(items, judged, strict=True):
        said = tuple(words[j.rule.name] for j in judgements)
        word = overall(said)
        code = CODES[word]
        if item.message is not None:
            say(f"error: {item.message}", err=True)
            code = Exit.REFUTED if word == "refuted" else Exit.BAD_INPUT if word != "vacuous" else code
        codes.append(code)
        if only_refuted and word != "refuted":
            continue
        documents.append(_document(item, word, said, judgements))
        if not options.as_json:
            _say(item, word, said, judgements)
    counts = Counter(overall(tuple(words[j.rule.name] for j in js)) for js in judged)
    if options.as_json:
        emit({"rules": documents, "counts": dict(sorted(counts.items())), "seconds": round(seconds, 3)})
    else:
        say(
            f"{', '.join(f'{n} {w}' for w, n in sorted(counts.items())) or 'no rules'}; {seconds:.1f} s"
            + (f"; wrote {options.output}" if options.output else "")
        )
    return max(codes, key=(Exit.DONE, Exit.UNDECIDED, Exit.REFUTED, Exit.BAD_INPUT).index) if codes else Exit.BAD_INPUT


def _degree(text: str | None) -> int | str | None:
    if text is None or text == "any":
        return text if text is None else "d"
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise InputError(f"--degree {text!r}: give a number >= 1, or 'any'")
    return int(text)


def _document(item: RuleItem, word: str, said: Sequence[str], judgements: Sequence[Judgement]) -> dict[str, object]:
    out: dict[str, object] = {"index": item.index, "name": item.name, "verdict": word}
    if item.message is not None:
        out["error"] = item.message
    match word:
        case "proved":
            stated = [[str(c) for c in j.rule.preconditions] for j in judgements if isinstance(j, Proved)]
            out["preconditions"] = list(dict.fromkeys(c for cs in stated for c in cs))
            forced, ones = _forced(judgements)
            out |= {"forced": forced} if forced else {}
            out |= {"degree_1_only": ones} if ones else {}
            if len(judgements) > 1:
                out["instances"] = [
                    {"name": j.rule.name, "verdict": w, "preconditions": [str(c) for c in j.rule.preconditions]}
                    for j, w in zip(judgements, said, strict=True)
                ]
        case "refuted":
            bad = next(j for j in judgements if isinstance(j, Refuted))
            out["counterexample"] = counterexample_document(bad.rule, bad.counterexample)
        case "vacuous":
            broken = next((j for j in judgements if isinstance(j, Vacuous) and j.violation is not None), None)
            if broken is not None and broken.violation is not None:
                out["reason"] = "the left side reads unequal copies" + (", on every instance" if broken.cases else "")
                out["violation"] = counterexample_document(broken.rule, broken.violation)
            else:
                out["reason"] = "the left side types for no sizes"
        case _:
            out["reason"] = next((j.reason for j in judgements if isinstance(j, Undecided)), "")
    return out


def _forced(judgements: Sequence[Judgement]) -> tuple[list[str], list[str]]:
    """What typing forces beside the preconditions, and degrees that can only be 1, of all proved substitutions of a
    rule.
    """
    forced: list[str] = []
    ones: list[str] = []
    for j in judgements:
        if isinstance(j, Proved):
            found = forced_values(j.rule, shown_cases(j))
            forced += forced_texts(j.rule, found)
            ones += at_degree_one_only(j.rule, found)
    return list(dict.fromkeys(forced)), list(dict.fromkeys(ones))


def counterexample_document(rule: Substitution, e: Counterexample) -> dict[str, object]:
    """A counterexample as JSON: sizes, degrees and parameters by name, entries of every input, what goes wrong."""
    return {
        "instance": dict(e.instance),
        "inputs": {p.name: list(v) for p, v in zip(rule.inputs, e.values, strict=False)},
        "functions": e.functions,
        "what": e.what,
    }


def _say(item: RuleItem, word: str, said: Sequence[str], judgements: Sequence[Judgement]) -> None:
    shown = judgements[0].rule
    line = f"{item.name}: {word}"
    if word == "proved":
        stated = list(dict.fromkeys(str(c) for j in judgements if isinstance(j, Proved) for c in j.rule.preconditions))
        forced, ones = _forced(judgements)
        line += " at degree 1 only" if ones else ""
        line += f" if {', '.join(stated)}" if stated else ""
        line += f"{',' if stated else ''} where typing forces {', '.join(forced)}" if forced else ""
    elif word == "undecided":
        line += f": {next((j.reason for j in judgements if isinstance(j, Undecided)), '')}"
    say(f"{line}    [{' => '.join(sides_text(shown))}]")
    if word == "refuted":
        bad = next(j for j in judgements if isinstance(j, Refuted))
        for text in counterexample_text(bad.rule, bad.counterexample):
            say(f"  {text}")


@click.command("generate")
@output_option("-o", "--output", required=True, help="Library to write (.spz).", replaces_results=True)
@force_option
@click.option("--operators", "most", type=Count(1, 3), default=3, show_default=True, help="Operators per side at most.")
@click.option(
    "--pool",
    "pools",
    type=click.Choice(tuple(POOLS)),
    multiple=True,
    help="Inputs and operators that graphs are made of; may be given several times. Without it: matrices and batches, "
    "or the operators of --operator.",
)
@own_operators
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep progress here; a second run takes it up again.",
)
@jobs_option
@json_option
@click.pass_obj
@refuse_combinations(GENERATE)
def generate_command(
    publisher: Publisher,
    output: Path,
    most: int,
    pools: tuple[str, ...],
    operators: tuple[Path, ...],
    journal: Path | None,
    jobs: int,
    as_json: bool,
) -> int:
    """Enumerate graphs, find those of equal value, prove them, and keep a basis: a library of rules."""
    start = time.monotonic()
    if journal is not None:
        check_journal(journal)
    own = [read_specification(path) for path in operators]
    chosen = [*(POOLS[name](most) for name in pools or (() if own else UNITYS)), *(operator_pool(s, most) for s in own)]
    with Watch("generating") as watch:
        kept, report = generate(chosen, jobs, journal, lambda stage, done, total: _progress(watch, stage, done, total))
        numbers = {**report.counts(), "operators per side": most}
        numbers |= {f"pool {name}": 1 for name in pools} | {f"operator {s.name}": 1 for s in own}
        if own and not pools:
            about = [p for p in kept if any(n.operator == SPECIFIED for n in (*p.rule.left, *p.rule.right))]
            numbers |= {"kept without the operator, left out": len(kept) - len(about)}
            kept = about
        promised, unproved = judge_readings(own)
        numbers |= {"kept, of other readings": len(promised)} if own else {}
        library = Library(
            f"generated rules, up to {most} operators a side",
            (*kept, *promised),
            (),
            "rules generate",
            tuple(sorted(numbers.items())),
        )
        words = publisher.rules(output, library)
    proved, seconds = sum(w == "proved" for w in words.values()), time.monotonic() - start
    if as_json:
        more: dict[str, object] = {"not_proved": unproved} if own else {}
        emit({**numbers, **more, "proved": proved, "seconds": round(seconds, 1), "library": str(output)})
    else:
        for name, n in numbers.items():
            say(f"{n:>9}  {name}")
        if own:
            say(*(f"{name}: not proved, and left out" for name in unproved))
        else:
            say("Unity: 743 + 651 candidates, 43 + 33 properties, 30 minutes")
        say(f"{proved} rules proved and checked in {seconds:.0f} s; wrote {output}")
    return Exit.DONE if proved == len(words) else Exit.UNDECIDED


@dataclass(frozen=True)
class DeriveOptions:
    """The command line of `rules derive`."""

    file: Path
    source: Path
    steps: int
    only: str
    time_limit: float | None
    work_limit: int | None
    jobs: int
    output: Path | None
    as_json: bool


@click.command("derive")
@file_argument
@click.option(
    "--from",
    "source",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Library (.spz) whose proved rules may be used.",
)
@click.option("--steps", type=Count(1, 4), default=4, show_default=True, help="Steps per output at most.")
@click.option("--only", default="*", show_default=True, help="Rules with names like this, such as 'figure-*'.")
@limits
@jobs_option
@output_option("-o", "--output", help="Write the library with the derivations here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(DERIVE)
@options_as(DeriveOptions)
def derive_command(publisher: Publisher, options: DeriveOptions) -> int:
    """Derive the rules of FILE from those of a library: a second proof, as a chain of rewrites.

    A rule that the library holds itself is derived from the others, as NAME-derived.
    """
    start = time.monotonic()
    try:
        base, _ = read_library(options.source)
    except ContainerError as error:
        raise InputError(f"{options.source}: {error}") from None
    deriver = Deriver([j.rule for j in base.judgements if isinstance(j, Proved)])
    items = tuple(item for item in load_rules(options.file) if fnmatch(item.name, options.only))
    taken = {j.rule.name for j in base.judgements}
    found, open_ = [], []
    with Watch(f"deriving {options.file.name}") as watch:
        for judgements in judge_items(
            items, clock_of(options.time_limit, options.work_limit, RULE_S).allowance(), options.jobs, watch.count
        ):
            for j in judgements:
                d = (
                    deriver.derive(j.rule, options.steps, through=way_points(j.rule.name))
                    if isinstance(j, Proved)
                    else None
                )
                if d is not None:
                    name = d.rule.name
                    found.append(replace(d, rule=replace(d.rule, name=f"{name}-derived")) if name in taken else d)
                elif isinstance(j, Proved):
                    open_.append(j.rule.name)
        library = Library(
            f"{options.file.name} from {base.title}", base.judgements, tuple(found), "rules derive", base.counts
        )
        words = publisher.rules(options.output, library)
    derived = [d for d in found if words.get(d.rule.name) == "derived"]
    seconds = time.monotonic() - start
    if options.as_json:
        emit(
            {
                "derived": [{"name": d.rule.name, "steps": d.length} for d in derived],
                "not_derived": open_,
                "seconds": round(seconds, 3),
            }
        )
        return Exit.DONE
    known = {j.rule.name: j.rule for j in base.judgements}
    for d in derived:
        say(f"{d.rule.name}: {d.length} steps")
        for line in derivation_text(d, known):
            say(line)
    left = f"{len(open_)} proved rules not derived in {options.steps} steps"
    say(f"{len(derived)} derived and replayed, {left}; {seconds:.1f} s")
    return Exit.DONE


def _progress(watch: Watch, stage: str, done: int, total: int) -> None:
    watch.label = stage
    watch.count(done, total)
