"""`export` of a pipelined plan: its stages, placements and schedule in the words of another
framework.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...models.files.output import write_file
from ...models.schedules.actions import compute_rows, csv_bytes
from ...models.schedules.pipeline import Pipeline
from ...models.terminal.console import Exit, emit, say
from ...models.text import InputError
from ...proofs.pipelines.certificate import PipelineCertificate
from ..export.exported import Exported, parts_json
from ..export.pipelined import export_pipeline, shared_weights
from ..export.read_recipe import recipe

PIPELINED: Final[dict[str, Callable[[PipelineCertificate, str, bool], Exported]]] = {"dtensor": export_pipeline}
ACTIONS: Final = "actions"
NAMED: Final = 5
"""Layouts that the target does not say, printed; `--json` and the file have all."""


def export_pipelined(
    c: PipelineCertificate,
    identity: str,
    target: str,
    csv: Path | None,
    output: Path,
    as_json: bool,
    layouts_only: bool = False,
) -> int:
    """Write the files and say what they hold.  Raises `InputError` for a target that takes no pipelines."""
    made = pipelined_text(c, identity, target, layouts_only)
    write_file(output, made.text.encode())
    if csv is not None:
        write_file(csv, schedule_csv(c))
    names = [c.division.cuts[s.first - 1][0] for s in c.stages[1:]]
    if as_json:
        emit(
            {
                "identity": identity,
                "target": target,
                "file": str(output),
                "csv": None if csv is None else str(csv),
                "stages": len(c.stages),
                "micro_batches": c.micro,
                "cuts": names,
                "mesh": [list(pair) for pair in made.mesh],
                "said": made.said,
                "refused": [[r.place, r.tensor, r.reason] for r in made.refused],
                **parts_json(made),
            }
        )
        return Exit.DONE
    mesh = " x ".join(f"{name} {size}" for name, size in made.mesh)
    say(f"{c.graph.name}: {made.said} layouts over {mesh}, {c.micro} micro-batches; cut behind {', '.join(names)}")
    slices = [r for r in made.refused if r.reason.startswith("slice:")]
    others = [r for r in made.refused if not r.reason.startswith("slice:")]
    if slices:
        say(f"{len(slices)} layouts are of parts of a tensor, such as a fused projection: each lies as the whole does")
    if others:
        say(f"{len(others)} layouts are not what {target} can say; it will move what the plan does not:")
        say(*(f"  {r.place}: {r.reason}" for r in others[:NAMED]))
        if len(others) > NAMED:
            say(f"  and {len(others) - NAMED} more (all in the file)")
    if made.done:
        say(f"the job does as planned: {', '.join(part for part, _ in made.done)}")
    if made.left_out:
        say(f"not in the {target} file, and the job's to do:", *(f"  {part}: {words}" for part, words in made.left_out))
    say(*([f"wrote {csv}"] if csv is not None else []), f"wrote {output}")
    return Exit.DONE


def pipelined_text(c: PipelineCertificate, identity: str, target: str, layouts_only: bool = False) -> Exported:
    """The file for a target.  Raises `InputError` for one that takes no pipelines, and for parts of the plan that it
    does not do, unless only layouts are asked for.
    """
    if target not in PIPELINED:
        raise InputError(
            f"pipelined plans are exported to {', '.join(PIPELINED)}, not to {target}; "
            "what plan makes without --pipeline is"
        )
    if c.chunks > 1:
        raise InputError(
            f"the plan has {c.chunks} chunks of the model on every stage, {target} files hold one a stage; "
            "--to actions writes its schedule"
        )
    if c.overlap is not None and not layouts_only:
        raise InputError(
            f"the plan says in which order reshardings run beside operators, {target} files do not; plan without "
            "--overlap, or take --layouts-only"
        )
    return PIPELINED[target](c, identity, layouts_only)


def export_actions(c: PipelineCertificate, identity: str, output: Path, as_json: bool) -> int:
    """Write the schedule alone: a row per view; numbers are those of torch's stages, which are chunks of the model."""
    write_file(output, schedule_csv(c))
    left = tuple((part, words) for part, words in recipe(c.graph).words() if part != "micro-batches")
    if shared := shared_weights(c):
        several = f"{', '.join(shared)} of several stages: gradients are to be added up once a step"
        left += (("shared weights", several),)
    if as_json:
        sizes = {"stages": c.views, "chunks": c.chunks, "micro_batches": c.micro}
        emit({"identity": identity, "target": ACTIONS, "file": str(output), **sizes, "left_out": dict(left)})
    else:
        chunks = f" of {c.chunks} chunks" if c.chunks > 1 else ""
        say(f"{c.graph.name}: {c.views} stages{chunks}, {c.micro} micro-batches")
        say("the schedule alone; not in the file: layouts, " + ", ".join(f"{part} ({words})" for part, words in left))
        say(f"wrote {output}")
    return Exit.DONE


def schedule_csv(c: PipelineCertificate) -> bytes:
    """Forwards and backwards of every stage, in order."""
    pipe = c.schedule.subject
    if not isinstance(pipe, Pipeline):
        raise InputError("the plan's schedule is none of a pipeline")
    return csv_bytes(compute_rows(pipe, c.schedule.starts))
