"""The verb `rules check`, which replays the proofs of a rule library.  No solver is loaded."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import click

from ...models.problem.claims import Verdict
from ...models.terminal.combinations import Combinations
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import json_option, refuse_combinations
from ...proofs.container.canonical import ContainerError
from ...proofs.rewrites.library import read_library
from ..rewrites.library import check_library, library_result

_CODES = {Verdict.PROVED: Exit.DONE, Verdict.UNDECIDED: Exit.UNDECIDED, Verdict.REFUTED: Exit.REFUTED}


@click.command("check")
@click.argument("library", type=click.Path(path_type=Path))
@json_option
@refuse_combinations(Combinations("rules check", ("as_json",)))
def rules_check_command(library: Path, as_json: bool) -> int:
    """Check every proof and derivation of a rule library (.spz)."""
    start = time.monotonic()
    try:
        found, name = read_library(library)
    except ContainerError as error:
        raise ContainerError(f"{library}, {error.place}", error.message) from None
    with Watch(f"checking {library.name}") as watch:
        results = check_library(found, watch.count)
    claim = library_result(results)
    seconds = time.monotonic() - start
    counts = dict(sorted(Counter(r.word for r in results).items()))
    if as_json:
        emit(
            {
                "verdict": claim.verdict.value,
                "claims": [claim.to_json()],
                "counts": counts,
                "identity": name,
                "seconds": round(seconds, 3),
                "rules": [r.to_json() for r in results],
            }
        )
        return _CODES[claim.verdict]
    say(f"{library}: {found.title}, {name}")
    for r in results:
        if r.word in ("rejected", "undecided"):
            say(f"  {r.name}: {r.word}; {r.reason}")
        elif r.degree_one:
            say(f"  {r.name}: {r.word} at degree 1 only ({', '.join(f'{s} = 1' for s in r.degree_one)})")
    what = "" if claim.kind == "Rules" else f"{claim.kind} "
    say(f"{what}{claim.verdict.value}: {', '.join(f'{n} {word}' for word, n in counts.items())}; {seconds:.1f} s")
    return _CODES[claim.verdict]
