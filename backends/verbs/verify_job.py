"""The verb `verify-job`: what a planned PyTorch module or JAX function sends, against what its plan
moves.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from ...models.files.input import regular
from ...models.sources.building.python_file import load_object
from ...models.terminal.combinations import Combinations
from ...models.terminal.console import Exit, emit, say
from ...models.terminal.options import AMOUNT, json_option, refuse_combinations
from ...models.text import InputError, bytes_text
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.placed import placed_plan
from ...proofs.publishing.publisher import Publisher
from ...proofs.views.certificate import SubmeshCertificate
from ..export.hlo import compare_traffic
from ..export.rows import Traffic

MAX_TEXT = 1 << 26
"""Bytes of HLO text that are read."""


@dataclass(frozen=True)
class _Checked:
    bundle: Plan
    identity: str


@click.command("verify-job")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.argument("model", metavar="FILE.py:NAME")
@click.option("--excess", type=AMOUNT, default=0, help="Bytes that a rank may receive beyond those of the plan.")
@json_option
@click.pass_obj
@refuse_combinations(Combinations("verify-job", ("excess", "as_json")))
def verify_job_command(publisher: Publisher, plan_file: Path, model: str, excess: int, as_json: bool) -> int:
    """Run one pass of the module that NAME of FILE.py makes, laid out as PLAN says, on one of as many pretended ranks
    as the plan has devices, and compare what it sends with what the plan moves.  Of a jitted JAX function with its
    placed arguments, or of the HLO text in FILE.hlo, the compiled collectives are read.  Exit 10: a rank receives more.
    """
    if model.endswith((".hlo", ".txt")):
        plan, identity = _plan(publisher, plan_file)
        with regular(Path(model)).open("rb") as f:
            return _say(
                plan, identity, compare_traffic(plan, f.read(MAX_TEXT).decode(errors="replace")), excess, as_json
            )
    named = re.fullmatch(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][A-Za-z_0-9.]*)", model)
    if named is None:
        raise InputError(
            f"{model[:200]!r} is not FILE.py:NAME, a function that returns (module, example inputs), nor FILE.hlo"
        )
    plan, identity = _plan(publisher, plan_file)
    path = Path(named["file"])
    devices = f"--xla_force_host_platform_device_count={plan.machine.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}".strip()  # read when JAX is first imported
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    try:
        factory = load_object(path, named["name"])
        made = cast("Callable[[], object]", factory)() if callable(factory) else None
    finally:
        sys.path.pop(0)
    if isinstance(made, tuple) and len(made) == 2 and hasattr(made[0], "lower"):
        return _say(
            plan, identity, compare_traffic(plan, _compiled(made[0], made[1], plan.machine.devices)), excess, as_json
        )
    try:
        from ..export import apply as job
    except ImportError:
        raise InputError("PyTorch is not installed; it is the extra [torch]: pip install 'shardproof[torch]'") from None
    if not isinstance(made, tuple) or len(made) < 2:
        raise InputError(f"{model} must be a function that returns (module, example inputs)")
    try:
        found = job.verify(_Checked(plan, identity), made[0], made[1])
    except ValueError as error:
        raise InputError(f"{model} is not the model of {plan_file}: {error}") from None
    return _say(plan, identity, found, excess, as_json)


def _plan(publisher: Publisher, path: Path) -> tuple[Plan, str]:
    """A checked plan of which a job is made, and its identity; `InputError` for one with stages or submeshes."""
    found = publisher.open(path).with_choices()
    if isinstance(found.held, PipelineCertificate | SubmeshCertificate):
        raise InputError(f"{path}: a job is compared with a plan whose operators all run on all devices")
    return placed_plan(found.held), found.identity


def _compiled(function: Any, inputs: object, devices: int) -> str:
    """HLO text of a jitted function with its arguments.  Raises `InputError` on another number of devices."""
    import jax

    if jax.device_count() != devices:
        raise InputError(
            f"JAX has {jax.device_count()} devices, the plan {devices}; verify-job sets XLA_FLAGS before the file "
            "imports JAX: leave JAX_PLATFORMS=cpu, or plan for this machine"
        )
    lowered = function.lower(**inputs) if isinstance(inputs, dict) else function.lower(*cast("tuple[object]", inputs))
    return str(lowered.compile().as_text())


def _say(plan: Plan, identity: str, found: Traffic, excess: int, as_json: bool) -> int:
    beyond = max(0, found.received_bytes - found.planned_bytes)
    ends = Exit.REFUTED if beyond > excess else Exit.DONE
    if as_json:
        rows = [[r.place, r.verdict, r.planned, r.received, list(r.collectives)] for r in found.rows]
        emit({"identity": identity, "planned": found.planned_bytes, "received": found.received_bytes, "rows": rows,
              "beyond": beyond, "whole": dict(found.whole)})  # fmt: skip
        return ends
    equal = sum(r.verdict == "equal" for r in found.rows)
    say(
        f"{plan.graph.name}: a rank receives {bytes_text(found.received_bytes)} in a pass, "
        f"{bytes_text(found.planned_bytes)} in the plan",
        f"{equal} of {len(found.rows)} places send what is planned",
    )
    for r in found.differences:
        calls = f" ({', '.join(r.collectives)})" if r.collectives else ""
        say(f"  {r.verdict:<9} {r.place}: planned {bytes_text(r.planned)}, sent {bytes_text(r.received)}{calls}")
    if found.whole:
        say("on whole tensors: " + ", ".join(f"{name} {n}" for name, n in found.whole))
    if ends:
        say(f"refuted: {beyond:,} bytes more than the plan moves; --excess {beyond} allows them")
    return ends
