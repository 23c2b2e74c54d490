"""The verb `rules show`: rules as text, pictures, FlexFlow's JSON and SMT-LIB, with the steps of
their proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from ...models.files.output import write_file
from ...models.rewrites.forced import at_degree_one_only, forced_texts, forced_values
from ...models.rewrites.rule import Substitution
from ...models.rewrites.terms import sides_text
from ...models.sources.rules.formats import write_public_rules
from ...models.sources.rules.writer import public_rule
from ...models.terminal.console import Exit, emit, say
from ...models.terminal.options import (
    force_option,
    json_option,
    output_option,
    refuse_combinations,
    require_combination,
)
from ...models.text import InputError
from ...proofs.container.canonical import ContainerError
from ...proofs.export.smtlib import smtlib_script
from ...proofs.rewrites.derivation import Derivation, derivation_text
from ...proofs.rewrites.judgement import Judgement, Proved, Refuted, Undecided, Vacuous, shown_cases
from ...proofs.rewrites.library import SHIPPED, read_library
from ..rewriting.obligations import obligations
from ..rewriting.picture import judgement_text, rule_svg, rule_text
from ..rewriting.rule_files import load_rules
from .combinations import SHOW

Judged = tuple[Substitution, Judgement | list[str] | None]
"""A rule, and its judgement or the text of its derivation."""


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
@refuse_combinations(SHOW)
def show_command(
    rule: str | None, file: Path | None, svg: Path | None, flexflow: Path | None, smtlib: Path | None, as_json: bool
) -> int:
    """Show a rule: both sides, preconditions, and the steps of its proof.  Without RULE: list the rules."""
    if rule is None:
        require_combination(SHOW, rule="all")
    found = _judgements(file)
    if rule is None:
        if flexflow is not None:
            _write_flexflow(flexflow, [r for r, _ in found])
        _show_all(found, as_json)
        return Exit.DONE
    one, judgement = _rule_called(rule, found)
    if svg is not None:
        write_file(svg, rule_svg(one).encode())
    if flexflow is not None:
        _write_flexflow(flexflow, [one])
    if smtlib is not None:
        found_obligations = obligations(one)
        write_file(smtlib, smtlib_script(found_obligations, one.name).encode())
        say(f"wrote {len(found_obligations)} obligations to {smtlib}", err=True)
    _show_one(one, judgement, as_json)
    return Exit.DONE


def _show_all(found: Sequence[Judged], as_json: bool) -> None:
    """Every rule on a line."""
    if as_json:
        rules = [
            {
                "name": r.name,
                **dict(zip(("left", "right"), sides_text(r), strict=True)),
                "preconditions": [str(c) for c in r.preconditions],
                "degree_1_only": list(_ones(r, j)),
            }
            for r, j in found
        ]
        emit({"rules": rules})
        return
    for r, j in found:
        said = [f"if {', '.join(map(str, r.preconditions))}"] if r.preconditions else []
        said += ["at degree 1 only"] if _ones(r, j) else []
        say(f"{r.name:<12} {' => '.join(sides_text(r))}" + (f"   {'; '.join(said)}" if said else ""))


def _rule_called(name: str, found: Sequence[Judged]) -> Judged:
    """The rule of a name.  Raises `InputError` with names that are near."""
    chosen = next(((r, j) for r, j in found if r.name == name), None)
    if chosen is None:
        names = [r.name for r, _ in found]
        near = [n for n in names if name in n][:8] or get_close_matches(name, names)
        raise InputError(
            f"no rule is called {name!r}"
            + (f"; there are {', '.join(near)}" if near else f"; 'shardproof rules show' lists all {len(found)}")
        )
    return chosen


def _show_one(one: Substitution, judgement: Judgement | list[str] | None, as_json: bool) -> None:
    """A rule and its proof."""
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
        return
    for line in (*text, "", *proof):
        say(line)


def _forced_of(rule: Substitution, judgement: Judgement | list[str] | None) -> tuple[tuple[str, int], ...]:
    if isinstance(judgement, Refuted | Vacuous | Undecided):
        return ()
    return forced_values(rule, shown_cases(judgement) if isinstance(judgement, Proved) else None)


def _ones(rule: Substitution, judgement: Judgement | list[str] | None) -> tuple[str, ...]:
    return at_degree_one_only(rule, _forced_of(rule, judgement))


def _judgements(file: Path | None) -> list[Judged]:
    """Rules with their judgement, or the text of their derivation."""
    files = [file] if file is not None else sorted(SHIPPED.glob("*.spz"))
    if not files:
        raise InputError("no library comes with this installation; give one with --library")
    out: list[Judged] = []
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
