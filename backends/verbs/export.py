"""The verb `export`: a checked plan in the words of another framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from ...models.files.output import write_file
from ...models.terminal.console import Exit, emit, say
from ...models.terminal.options import force_option, json_option, output_option
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.publisher import Publisher
from ..export.dtensor import export_dtensor
from ..export.exported import Exported
from ..export.jax import export_jax

TARGETS: Final[dict[str, Callable[[Plan, str], Exported]]] = {"dtensor": export_dtensor, "jax": export_jax}

NAMED: Final = 5
"""Layouts that the target does not say, printed; `--json` and the file have all."""


@click.command("export")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(sorted(TARGETS)),
    required=True,
    help="dtensor: a PyTorch module laid out by a Python file; jax: PartitionSpecs.",
)
@output_option("-o", "--output", required=True, help="The file to write.")
@force_option
@json_option
@click.pass_obj
def export_command(publisher: Publisher, plan_file: Path, target: str, output: Path, as_json: bool) -> int:
    """Write PLAN for another framework; the file needs nothing of ours."""
    plan, identity = publisher.checked_plan(plan_file)
    made = TARGETS[target](plan, identity)
    write_file(output, made.text.encode())
    if as_json:
        emit(
            {
                "plan": str(plan_file),
                "identity": identity,
                "target": target,
                "file": str(output),
                "mesh": [list(pair) for pair in made.mesh],
                "said": made.said,
                "refused": [[r.place, r.tensor, r.reason] for r in made.refused],
            }
        )
        return Exit.DONE
    mesh = " x ".join(f"{name} {size}" for name, size in made.mesh)
    say(f"{plan.graph.name}: {made.said} layouts over the mesh {mesh}")
    if made.refused:
        say(f"{len(made.refused)} layouts are not what {target} can say; it will move what the plan does not:")
        say(*(f"  {r.place}: {r.reason}" for r in made.refused[:NAMED]))
        if len(made.refused) > NAMED:
            kinds = Counter(r.place.split(" ")[0] for r in made.refused[NAMED:])
            say(f"  and {', '.join(f'{n} of kind {kind}' for kind, n in sorted(kinds.items()))} (all in the file)")
    say(f"wrote {output}")
    return Exit.DONE
