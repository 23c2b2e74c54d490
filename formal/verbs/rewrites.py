"""The verbs `rules prove`, `rules refute`, `rules generate` and `rules show`.  `rules check` is the checker's
(`verify.verbs.rules`).

What they print about a rule is what the checker said of its proof: judgements are published first.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

import click

from ...models.files.output import write_file
from ...models.rewrites.forced import at_degree_one_only, forced_texts, forced_values
from ...models.rewrites.rule import Substitution
from ...models.rewrites.terms import sides_text
from ...models.sources.rules.formats import write_public_rules
from ...models.sources.rules.parallel import way_points
from ...models.sources.rules.writer import public_rule
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import SECONDS, THREADS, Count, force_option, output_option
from ...models.text import InputError
from ...proofs.container.canonical import ContainerError
from ...proofs.export.smtlib import smtlib_script
from ...proofs.publishing.publisher import Publisher
from ...proofs.rewrites.derivation import Derivation, derivation_text
from ...proofs.rewrites.judgement import Counterexample, Judgement, Proved, Refuted, Undecided, Vacuous, shown_cases
from ...proofs.rewrites.library import SHIPPED, Library, read_library
from ..rewrites.derive import Deriver
from ..rewrites.generate import check_journal, generate, rank2_pool, rank3_pool
from ..rewrites.obligations import obligations
from ..rewrites.picture import counterexample_text, judgement_text, rule_svg, rule_text
from ..rewrites.rule_files import RuleItem, judge_items, load_rules, overall

file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
limit_option = click.option("--time-limit", type=SECONDS, default=20.0, show_default=True, help="CPU seconds per rule.")
jobs_option = click.option(
    "--jobs", type=THREADS, default=min(2, os.cpu_count() or 1), show_default=True, help="Processes."
)
degree_option = click.option(
    "--degree", default=None, help="Instead of the degrees in the file: a number, or 'any' for every degree."
)
CODES = {"proved": Exit.DONE, "vacuous": Exit.DONE, "refuted": Exit.REFUTED, "undecided": Exit.UNDECIDED}


@click.command("prove")
@file_argument
@limit_option
@jobs_option
@degree_option
@output_option("-o", "--output", help="Write rules and proofs here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def prove_command(
    publisher: Publisher,
    file: Path,
    time_limit: float,
    jobs: int,
    degree: str | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Judge every rule of a file: proved (for all shapes, with preconditions), refuted (with a counterexample) or
    vacuous.

    FILE: FlexFlow's JSON, TASO's protobuf or axioms, a library (.spz), or the word `parallel` for the built-in
    properties.
    """
    return _prove(publisher, file, time_limit, jobs, degree, output, as_json, only_refuted=False)


@click.command("refute")
@file_argument
@limit_option
@jobs_option
@degree_option
@output_option("-o", "--output", help="Write rules and counterexamples here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def refute_command(
    publisher: Publisher,
    file: Path,
    time_limit: float,
    jobs: int,
    degree: str | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Like prove, but print the rules that fail, each with its counterexample."""
    return _prove(publisher, file, time_limit, jobs, degree, output, as_json, only_refuted=True)


def _prove(
    publisher: Publisher,
    file: Path,
    time_limit: float,
    jobs: int,
    degree: str | None,
    output: Path | None,
    as_json: bool,
    only_refuted: bool,
) -> int:
    start = time.monotonic()
    items = load_rules(file, _degree(degree))
    with Watch(f"judging {file.name}") as watch:
        judged = list(judge_items(items, time_limit, jobs, watch.count))
        library = Library(file.name, tuple(j for js in judged for j in js), (), "rules prove")
        words = publisher.rules(output, library)
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
        if not as_json:
            _say(item, word, said, judgements)
    counts = Counter(overall(tuple(words[j.rule.name] for j in js)) for js in judged)
    if as_json:
        emit({"rules": documents, "counts": dict(sorted(counts.items())), "seconds": round(seconds, 3)})
    else:
        say(
            f"{', '.join(f'{n} {w}' for w, n in sorted(counts.items())) or 'no rules'}; {seconds:.1f} s"
            + (f"; wrote {output}" if output else "")
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
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep progress here; a second run takes it up again.",
)
@jobs_option
@json_option
@click.pass_obj
def generate_command(
    publisher: Publisher, output: Path, most: int, journal: Path | None, jobs: int, as_json: bool
) -> int:
    """Enumerate graphs, find those of equal value, prove them, and keep a basis: a library of rules."""
    start = time.monotonic()
    if journal is not None:
        check_journal(journal)
    with Watch("generating") as watch:
        kept, report = generate(
            [rank2_pool(most), rank3_pool(most)],
            jobs,
            journal,
            lambda stage, done, total: _progress(watch, stage, done, total),
        )
        numbers = {
            "graphs": report.graphs,
            "classes": report.classes,
            "pairs": report.pairs,
            "candidates": report.candidates,
        }
        numbers |= {f"candidates {w}": n for w, n in report.outcomes.items()}
        numbers |= {
            "kept before minimising": report.kept_first,
            "kept": report.kept,
            "kept with parallel operators": report.parallel,
            "operators per side": most,
        }
        library = Library(
            f"generated rules, up to {most} operators a side",
            tuple(kept),
            (),
            "rules generate",
            tuple(sorted(numbers.items())),
        )
        words = publisher.rules(output, library)
    seconds = time.monotonic() - start
    proved = sum(w == "proved" for w in words.values())
    if as_json:
        emit({**numbers, "proved": proved, "seconds": round(seconds, 1), "library": str(output)})
    else:
        for name, n in numbers.items():
            say(f"{n:>9}  {name}")
        say("Unity: 743 + 651 candidates, 43 + 33 properties, 30 minutes")
        say(f"{proved} rules proved and checked in {seconds:.0f} s; wrote {output}")
    return Exit.DONE if proved == len(words) else Exit.UNDECIDED


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
@limit_option
@jobs_option
@output_option("-o", "--output", help="Write the library with the derivations here (.spz).", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def derive_command(
    publisher: Publisher,
    file: Path,
    source: Path,
    steps: int,
    only: str,
    time_limit: float,
    jobs: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Derive the rules of FILE from those of a library: a second proof, as a chain of rewrites.

    A rule that the library holds itself is derived from the others, as NAME-derived.
    """
    start = time.monotonic()
    try:
        base, _ = read_library(source)
    except ContainerError as error:
        raise InputError(f"{source}: {error}") from None
    deriver = Deriver([j.rule for j in base.judgements if isinstance(j, Proved)])
    items = tuple(item for item in load_rules(file) if fnmatch(item.name, only))
    taken = {j.rule.name for j in base.judgements}
    found, open_ = [], []
    with Watch(f"deriving {file.name}") as watch:
        for judgements in judge_items(items, time_limit, jobs, watch.count):
            for j in judgements:
                d = deriver.derive(j.rule, steps, through=way_points(j.rule.name)) if isinstance(j, Proved) else None
                if d is not None:
                    name = d.rule.name
                    found.append(replace(d, rule=replace(d.rule, name=f"{name}-derived")) if name in taken else d)
                elif isinstance(j, Proved):
                    open_.append(j.rule.name)
        library = Library(f"{file.name} from {base.title}", base.judgements, tuple(found), "rules derive", base.counts)
        words = publisher.rules(output, library)
    derived = [d for d in found if words.get(d.rule.name) == "derived"]
    seconds = time.monotonic() - start
    if as_json:
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
    say(f"{len(derived)} derived and replayed, {len(open_)} proved rules not derived in {steps} steps; {seconds:.1f} s")
    return Exit.DONE


def _progress(watch: Watch, stage: str, done: int, total: int) -> None:
    watch.label = stage
    watch.count(done, total)


@click.command("show")
@click.argument("rule", required=False)
@click.option(
    "--library",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Library (.spz) or rule file; default: those that come with shardproof.",
)
@output_option("--svg", help="Draw both sides here.")
@output_option("--flexflow", help="Write the rule (or without RULE all that can be said so) in FlexFlow's JSON.")
@output_option("--smtlib", help="Write the integer obligations of the rule's proof here (SMT-LIB).")
@force_option
@json_option
def show_command(
    rule: str | None, file: Path | None, svg: Path | None, flexflow: Path | None, smtlib: Path | None, as_json: bool
) -> int:
    """Show a rule: both sides, preconditions, and the steps of its proof.  Without RULE: list the rules."""
    found = _judgements(file)
    if rule is None:
        if flexflow is not None:
            _write_flexflow(flexflow, [r for r, _ in found])
        if as_json:
            emit(
                {
                    "rules": [
                        {
                            "name": r.name,
                            **dict(zip(("left", "right"), sides_text(r), strict=True)),
                            "preconditions": [str(c) for c in r.preconditions],
                            "degree_1_only": list(_ones(r, j)),
                        }
                        for r, j in found
                    ]
                }
            )
            return Exit.DONE
        for r, j in found:
            said = [f"if {', '.join(map(str, r.preconditions))}"] if r.preconditions else []
            said += ["at degree 1 only"] if _ones(r, j) else []
            say(f"{r.name:<12} {' => '.join(sides_text(r))}" + (f"   {'; '.join(said)}" if said else ""))
        return Exit.DONE
    chosen = [(r, j) for r, j in found if r.name == rule]
    if not chosen:
        names = [r.name for r, _ in found]
        near = [n for n in names if rule in n][:8] or get_close_matches(rule, names)
        raise InputError(
            f"no rule is called {rule!r}"
            + (f"; there are {', '.join(near)}" if near else f"; 'shardproof rules show' lists all {len(found)}")
        )
    one, judgement = chosen[0]
    if svg is not None:
        write_file(svg, rule_svg(one).encode())
    if flexflow is not None:
        _write_flexflow(flexflow, [one])
    if smtlib is not None:
        found_obligations = obligations(one)
        write_file(smtlib, smtlib_script(found_obligations, one.name).encode())
        say(f"wrote {len(found_obligations)} obligations to {smtlib}", err=True)
    proof = (
        judgement
        if isinstance(judgement, list)
        else judgement_text(judgement)
        if judgement is not None
        else ["not judged; 'shardproof rules prove' does it"]
    )
    forced = _forced_of(one, judgement)
    text = rule_text(one, forced)
    if as_json:
        left, right = sides_text(one)
        document: dict[str, object] = {
            "name": one.name,
            "left": left,
            "right": right,
            "preconditions": [str(c) for c in one.preconditions],
            "text": text,
            "proof": proof,
        }
        emit(
            document
            | {"forced": list(forced_texts(one, forced)), "degree_1_only": list(at_degree_one_only(one, forced))}
        )
        return Exit.DONE
    for line in (*text, "", *proof):
        say(line)
    return Exit.DONE


def _forced_of(rule: Substitution, judgement: Judgement | list[str] | None) -> tuple[tuple[str, int], ...]:
    if isinstance(judgement, Refuted | Vacuous | Undecided):
        return ()
    return forced_values(rule, shown_cases(judgement) if isinstance(judgement, Proved) else None)


def _ones(rule: Substitution, judgement: Judgement | list[str] | None) -> tuple[str, ...]:
    return at_degree_one_only(rule, _forced_of(rule, judgement))


def _judgements(file: Path | None) -> list[tuple[Substitution, Judgement | list[str] | None]]:
    """Rules with their judgement, or the text of their derivation."""
    files = [file] if file is not None else sorted(SHIPPED.glob("*.spz"))
    if not files:
        raise InputError("no library comes with this installation; give one with --library")
    out: list[tuple[Substitution, Judgement | list[str] | None]] = []
    for path in files:
        if path.suffix != ".spz":
            out += [(s, None) for item in load_rules(path) for s in item.substitutions]
            continue
        try:
            library, _ = read_library(path)
        except ContainerError as error:
            raise InputError(f"{path}: {error}") from None
        out += [(j.rule, j) for j in library.judgements]
        known = {j.rule.name: j.rule for j in library.judgements}
        for d in library.derivations:
            out.append((d.rule, _derived(d, known)))
            known[d.rule.name] = d.rule
    return out


def _derived(d: Derivation, known: dict[str, Substitution]) -> list[str]:
    return [f"derived in {d.length} steps", *derivation_text(d, known)]


def _write_flexflow(path: Path, rules: Sequence[Substitution]) -> None:
    written, left_out = [], []
    once = {r.name: r for r in reversed(rules)}  # a rule may stand in several libraries
    for k, r in enumerate(reversed(once.values())):
        try:
            written.append(public_rule(r, k))
        except ValueError as error:
            left_out.append(str(error))
    write_file(path, write_public_rules(written).encode())
    say(
        f"wrote {len(written)} rules to {path}"
        + (f"; {len(left_out)} left out, such as {left_out[0]}" if left_out else ""),
        err=True,
    )
