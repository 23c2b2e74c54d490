"""The selection problem that a file holds, or that a plan is an answer to, as a file for another solver."""

from __future__ import annotations

from pathlib import Path

from ...models.problem.selection_problem import SelectionProblem
from ...models.text import InputError
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.kind import plan_kind
from ...proofs.publishing.placed import parts_of
from ...proofs.publishing.publisher import Encoded, Publisher
from ...proofs.selection.load import load_selection_problem
from ..selection.engines.encodings.files import encode_problem
from .elsewhere import all_programs
from .request import problem_of


def encode_file(publisher: Publisher, path: Path, to: str) -> Encoded:
    """See `Publisher.encode`."""
    try:
        return encode_problem(selection_problem_of(publisher, path), to)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def selection_problem_of(publisher: Publisher, path: Path) -> SelectionProblem:
    """The problem in a file; of a checked plan the one that its proof is about, over all programs where rules made it
    one.
    """
    if plan_kind(path) in (None, "other"):
        return load_selection_problem(path)
    opened = publisher.open(path)
    plan = opened.held
    if not isinstance(plan, Plan):
        raise InputError(
            f"has {parts_of(plan)}: its proof rests on several problems; give a plan made without --pipeline, "
            "--overlap and --submeshes"
        )
    return all_programs(plan)[0].problem if plan.joint is not None else problem_of(opened, plan)[0].problem
