"""The command line has no private way to plan, check, explain, audit, compare or export: what these verbs call is what
the Python way in calls, and besides it only words.
"""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WAYS_IN = ("api.py", "answers.py", "problems.py", "solutions.py", "front_door.py")
VERBS = {
    "formal": (
        "plan",
        "joint",
        "pipelined",
        "portfolio",
        "submeshes",
        "conflict",
        "audit",
        "explain",
        "report",
        "results",
        "place",
        "reduce",
        "schedule",
        "solve",
    ),
    "verify": ("check", "programs", "others", "request", "subject"),
    "backends": ("export",),
}
WORDS = {
    "formal.calibration.parts.calibration_errors": "reads error bounds out of the plan's machine",
    "formal.collective_programs.asked.engine_lines": "text",
    "formal.verbs.place_experts.place_all_experts": "experts on ranks: counts in, orders out, no plan",
    "formal.explain.error_bounds.error_bound_lines": "text",
    "formal.explain.error_bounds.error_bounds_json": "text",
    "formal.explain.constraints.render": "text",
    "formal.explain.constraints.to_json": "text",
    "formal.explain.parallel_graph.picture": "a drawing",
    "formal.explain.request.carry_out_audit_of_choices": "selection problems, which hold no model",
    "formal.explain.request.problem_again": "the problem of a file without choices, for the words of its conflict",
    "formal.explain.summary.memory_parts": "what a plan's own rows count, for a line of text",
    "formal.explain.summary.memory_words": "text",
    "formal.explain.summary.next_commands": "text",
    "formal.explain.summary.parallelism_line": "text",
    "formal.explain.summary.short_flags": "text",
    "formal.explain.summary.time_line": "text",
    "formal.explain.views.submesh_json_of": "text",
    "formal.explain.views.submesh_lines_of": "text",
    "formal.rewriting.joint.checkpoints.again_words": "text",
    "formal.rewriting.joint.checkpoints.computed_again": "names the tensors that a plan's program computes again",
    "formal.rewriting.joint.checkpoints.tensors_on_hosts": "names the tensors that a plan's program offloads",
    "formal.rewriting.joint.job.has_hosts": "says whether there was anywhere to offload to",
    "formal.rewriting.joint.checkpoints.has_choices": "says whether there was anything to choose",
    "formal.rewriting.joint.gains.gains": "remarks about rewritings",
    "formal.rewriting.joint.gains.lines": "text",
    "formal.plans.frameworks.framework_settings": "tells a framework's settings from a list of choices",
    "formal.plans.frameworks.pipelined_settings": "the same",
    "formal.plans.frameworks.settings_of_step": "compares them with the options of a step",
    "formal.plans.layouts.tensor_layouts": "the same",
    "formal.plans.sizes.size_range": "the range in the name of a model, which Python plans size by size",
    "formal.plans.strategy_file.load_strategy": "the same",
    "formal.plans.report.amount": "text",
    "formal.plans.report.labels": "text",
    "formal.plans.report.short_title": "text",
    "formal.report.explained.among_json": "text",
    "formal.report.explained.among_lines": "text",
    "formal.report.page.diff_page": "text",
    "formal.report.parts.parts_diff_page": "text",
    "formal.schedules.drawing.peaks": "text",
    "formal.schedules.drawing.picture": "a drawing",
    "formal.schedules.drawing.text": "text",
    "formal.schedules.published.orders": "orders of actions in a file of PyTorch",
    "formal.selection.engines.consult.conversation": "text",
    "formal.selection.tree.cut.cut_below": "shortens a proof that is too large to be checked",
    "formal.selection.tree.cut.split_depth": "the same",
    "formal.selection.tree.infeasible.least_use": "names the rows of a conflict",
    "verify.portfolio.certificate.assumed_program": "reads an assumption",
    "verify.verdict.report": "text",
    "verify.verdict.worst": "the verdict of several files",
}
"""What verbs call beside: name -> why it is no way to plan, check or explain."""


def imported(path: Path) -> set[str]:
    """Functions of our own that a file imports, wherever in it, by their full name."""
    folder, out = path.relative_to(ROOT).parent.parts, set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        words = tuple(node.module.split(".")) if node.module else ()
        if node.level:
            home = (*folder[: len(folder) - node.level + 1], *words)
        elif words[:1] == ("shardproof",):
            home = words[1:]
        else:
            continue
        out |= {".".join((*home, alias.name)) for alias in node.names}
    return out


OURS = {name for way in WAYS_IN for name in imported(ROOT / way)}
FILES = [f"{room}/verbs/{verb}.py" for room, verbs in VERBS.items() for verb in verbs]


def private(path: Path) -> set[str]:
    """Functions of the search, the checkers and the exporters that the Python way in does not call."""
    found = {n for n in imported(path) if n.split(".")[0] in VERBS and ".verbs." not in n}
    functions = {
        n for n in found if n.rpartition(".")[2][0].islower() and not n.rpartition(".")[2].startswith("render_")
    }
    if path.name == "export.py":  # the Python way in takes its table of targets
        assert "backends.verbs.export.TARGETS" in OURS
        functions = {n for n in functions if not n.startswith("backends.export.")}
    return functions - OURS - set(WORDS)


@pytest.mark.parametrize("file", FILES)
def test_verbs_call_what_the_api_calls(file: str) -> None:
    assert private(ROOT / file) == set()


def test_the_listed_words_are_used() -> None:
    assert set(WORDS) <= {n for file in FILES for n in imported(ROOT / file)}


def test_it_can_say_no() -> None:
    """A verb of e-graphs does search by itself, and is seen."""
    assert private(ROOT / "formal/verbs/extraction.py") >= {"formal.rewriting.egraphs.solve.extract"}
    assert {"formal.plans.request.carry_out", "verify.verbs.kinds.require_known"} <= OURS
    assert "formal.plans.plan.plan_graph" not in OURS


def test_python_and_the_command_line_have_one_list_of_options() -> None:
    """What both take is written once: the classes of both begin with the same one."""
    from shardproof.api import PlanKeywords
    from shardproof.formal.collective_programs.options import ProgramOptions
    from shardproof.formal.plans.options import PlanOptions, RewriteOptions
    from shardproof.formal.schedules.options import ScheduleOptions
    from shardproof.formal.verbs.audit import AuditOptions
    from shardproof.formal.verbs.place import PlaceOptions
    from shardproof.formal.verbs.plan import PlanCommand
    from shardproof.formal.verbs.reduce import ReduceOptions
    from shardproof.formal.verbs.schedule import ScheduleCommand
    from shardproof.problems import PlaceKeywords, ReduceKeywords, ScheduleKeywords

    for both, kinds in {
        PlanOptions: (PlanKeywords, PlanCommand),
        RewriteOptions: (PlanKeywords, AuditOptions),
        ProgramOptions: (PlaceKeywords, PlaceOptions, ReduceKeywords, ReduceOptions),
        ScheduleOptions: (ScheduleKeywords, ScheduleCommand),
    }.items():
        assert all(issubclass(kind, both) for kind in kinds)
    alone = {f.name for f in fields(PlanKeywords)} - {f.name for f in fields(PlanOptions)}
    assert alone == {"inputs", "time_limit_s", "work_limit", "gap", "effort"}
