"""Certified parallelization plans: plan how a deep-learning program is split over a machine, and prove what is said
about it.

The names below are loaded on first use, so that `import shardproof` costs nothing and never pulls a solver into a
program that only checks.  No relative import may run here: pytest executes this file under the name of the checkout's
folder.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0"

# The public API.  A name is written three times: here for type checkers, in _HOME for the program, in __all__.
if TYPE_CHECKING:
    from .answers import NoPlan, Pipeline, Plan, PlanWithViews, Run
    from .api import audit, load, machine, pipeline, plan, rules
    from .backends.export import apply as torch
    from .models.machine.machine import Machine, load_machine
    from .models.program.graph import Graph
    from .models.sources.numpy.dace import dace
    from .models.sources.numpy.opaque import opaque
    from .models.sources.numpy.program import boolean, float32, float64, int32, int64, parameter, program
    from .models.sources.specified.known import operator
    from .problems import assert_equal_on_mesh, equal, place, reduce, schedule, solve
    from .solutions import Equality, Placements, Reduction, Schedule, Solution
else:
    _HOME = {
        "Equality": "solutions",
        "Graph": "models.program.graph",
        "Machine": "models.machine.machine",
        "NoPlan": "answers",
        "Pipeline": "answers",
        "Placements": "solutions",
        "Plan": "answers",
        "PlanWithViews": "answers",
        "Reduction": "solutions",
        "Run": "answers",
        "Schedule": "solutions",
        "Solution": "solutions",
        "assert_equal_on_mesh": "problems",
        "audit": "api",
        "boolean": "models.sources.numpy.program",
        "dace": "models.sources.numpy.dace",
        "equal": "problems",
        "float32": "models.sources.numpy.program",
        "float64": "models.sources.numpy.program",
        "int32": "models.sources.numpy.program",
        "int64": "models.sources.numpy.program",
        "load": "api",
        "load_machine": "models.machine.machine",
        "machine": "api",
        "opaque": "models.sources.numpy.opaque",
        "operator": "models.sources.specified.known",
        "parameter": "models.sources.numpy.program",
        "pipeline": "api",
        "place": "problems",
        "plan": "api",
        "program": "models.sources.numpy.program",
        "reduce": "problems",
        "rules": "api",
        "schedule": "problems",
        "solve": "problems",
    }

    def __getattr__(name):
        from importlib import import_module

        if name == "torch":  # a module, which needs PyTorch; no file of this name, or `import torch` here would find it
            return import_module(f"{__name__}.backends.export.apply")
        if name in _HOME:
            return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_HOME, "torch"})


__all__ = [
    "Equality",
    "Graph",
    "Machine",
    "NoPlan",
    "Pipeline",
    "Placements",
    "Plan",
    "PlanWithViews",
    "Reduction",
    "Run",
    "Schedule",
    "Solution",
    "__version__",
    "assert_equal_on_mesh",
    "audit",
    "boolean",
    "dace",
    "equal",
    "float32",
    "float64",
    "int32",
    "int64",
    "load",
    "load_machine",
    "machine",
    "opaque",
    "operator",
    "parameter",
    "pipeline",
    "place",
    "plan",
    "program",
    "reduce",
    "rules",
    "schedule",
    "solve",
    "torch",
]
