"""The tables of options of the verbs that search and explain (`models.terminal.combinations`): which
go together, and why others do not.

A cell is opened by taking it out of its row, once the verb does both: the tests then ask for the effect of both.
"""

from __future__ import annotations

from typing import Final

from ...models.joint.rules import MOST_NODES, ROUNDS
from ...models.layout.placement import VOCABULARIES
from ...models.terminal.combinations import FORCE, LIMIT, OUTPUT, PLAN_KINDS, TIME, Apart, Combinations, Needs
from ...proofs.pipelines.words import FORBIDDEN_WORDS
from ..plans.portfolio.words import FREEDOM_WORDS

_SAID: Final = tuple(f"space_name=*,{v}" for v in VOCABULARIES)
_VOCABULARY: Final = ("vocabulary", *_SAID)
"""What restricts a search to the words of a framework."""

_REWRITES: Final = ("rules", "rewrite_rounds", "rewrite_nodes", "rewrite_time")
"""What says which rewrites are searched, and how far."""

_THREADS: Final = {"threads": "the answer does not depend on it, only the time"}
_COMPARE: Final = {"compare": "whether an import is looked at changes no plan"}
_SEARCH: Final = {**FORCE, **LIMIT, **_THREADS}
_SETTINGS: Final = {"settings": "it reaches every search of a problem (tests/test_options.py), and is asked of none"}

PLAN: Final = Combinations(
    "plan",
    (
        *("machine", "train", "loss", "recompute", "batch", "precision", "micro_batch", "attention", "compare"),
        *("operators", "expert_loads", "memory", "space_name", "vocabulary", "engine", "effort", "time_limit"),
        *("offload", "collectives", "work_limit", "gap", "threads"),
        *("explain_cost", "strategy", "stages", "interleave", "without", "overlap", "views", "joint", "best"),
        *(*_REWRITES, "settings"),
        *OUTPUT,
    ),
    (
        *(Needs(option, ("joint", "best"), "it is of rewrites, which {joint} searches") for option in _REWRITES),
        Apart("without=rewrites", _REWRITES, "one asks for rewrites, the other does without"),
        *(Apart(option, _VOCABULARY, "no vocabulary goes with rewrites") for option in _REWRITES),
        Needs("loss", ("train",), "it says what a training step minimises; {train} sgd or {train} adam"),
        Needs("recompute", ("train",), "it says what a backward pass computes again; {train} sgd or {train} adam"),
        Needs("micro_batch", ("train",), "it cuts the batch of a training step; {train} sgd or {train} adam"),
        Needs("stages", ("train",), "it cuts training steps; {train} sgd or {train} adam"),
        Needs("recompute=auto", ("memory",), "it weighs time against memory"),
        Needs("recompute=tensors", ("memory",), "it weighs time against memory"),
        Needs("micro_batch=auto", ("memory",), "it weighs time against memory"),
        Needs("offload", ("recompute=tensors", "best"), "it is of tensors that are kept, computed again or offloaded"),
        Needs("offload", ("memory",), "it weighs time against memory"),
        Needs("offload", ("train",), "it is of what a backward pass reads; {train} sgd or {train} adam"),
        Needs("interleave", ("stages", "best"), "it lets stages have several chunks of the model"),
        Apart("interleave", ("micro_batch",), "it is of stages, which have micro-batches of their own"),
        Needs("interleave", ("train",), "only training steps have stages; {train} sgd or {train} adam"),
        *(Needs(f"without={w}", ("best",), "it says what is not searched of all that applies") for w in FREEDOM_WORDS),
        *(Apart(f"without={word}", ("best",), "it forbids placements of stages alone") for word in FORBIDDEN_WORDS),
        Needs("without", ("stages", "best"), "it forbids placements of pipelined steps"),
        Apart("without", ("views", "joint"), "it forbids placements of stages alone"),
        Apart("without=stages", ("stages", "interleave"), "one asks for them, the other does without"),
        Apart("without=recompute", ("recompute", "offload"), "one asks for it, the other does without"),
        Apart("best", ("recompute=none",), "it weighs recomputation unless {without} recompute says no"),
        Apart("best", ("overlap", "views", "joint"), "it searches this already"),
        Apart("best", ("engine", "threads"), "stages and streams are searched natively, with one thread"),
        Apart("best", ("explain_cost",), "costs of operators are those of one plan: 'shardproof explain PLAN --cost'"),
        Apart("recompute=auto", ("micro_batch=auto",), "each is a search with the other settled"),
        Apart("recompute=tensors", ("micro_batch",), "what is kept is decided for a batch that is taken whole"),
        Apart("recompute=tensors", _VOCABULARY, "it searches whole spaces"),
        Apart("recompute=tensors", ("explain_cost",), "it chooses the operators: 'shardproof explain PLAN --cost'"),
        Apart("vocabulary", _SAID, "the space says its vocabulary already: leave out one of the two"),
        Apart("vocabulary", ("space_name=*,uneven*",), "no vocabulary says uneven blocks: leave out one of the two"),
        Apart(
            "strategy",
            (
                *("engine", "recompute=auto", "recompute=tensors", "micro_batch=auto", "interleave", "without"),
                *("overlap", "views", "joint", "best"),
            ),
            "a strategy is taken as it is, and nothing is searched",
        ),
        Apart("stages", ("micro_batch",), "it has micro-batches of its own: {stages} STAGES:MICRO-BATCHES"),
        Apart("stages", ("engine", "threads"), "its stages are searched natively, with one thread"),
        Apart("stages", ("explain_cost",), "it prints stages; costs of operators are those of a plan without it"),
        Apart("stages=*:*:*", ("interleave",), "it says the number of chunks already"),
        Apart("overlap", ("engine", "threads"), "it is searched natively, with one thread"),
        Apart("overlap", ("explain_cost",), "it prints reshardings; costs of operators are those without it"),
        Apart("views", ("micro_batch",), "branches take the batch whole, without micro-batches"),
        Apart("views", ("collectives",), "submeshes are priced level by level"),
        Apart("views", _VOCABULARY, "no vocabulary says parts of the machine"),
        Apart("views", ("engine",), "submeshes are searched natively"),
        Apart("views", ("explain_cost",), "it prints branches; costs of operators are those of a plan without it"),
        Apart(
            "subject=range",
            (
                *("train", "batch", "expert_loads", "operators", "memory", "vocabulary", "collectives", "strategy"),
                *("explain_cost", "overlap", "views", "joint", "best"),
            ),
            "placements alone are settled for all sizes of a program as it is; plan one size, or 'shardproof sweep'",
        ),
        Apart("joint", _VOCABULARY, "it searches whole spaces"),
        Apart("joint", ("explain_cost",), "it chooses the operators: 'shardproof explain PLAN --cost' afterwards"),
    ),
    kinds={"subject": {"range": "a range of sizes"}},
    neutral={
        "recompute": "none",
        "engine": "native",
        "interleave": "1",
        "rewrite_rounds": str(ROUNDS),
        "rewrite_nodes": str(MOST_NODES),
    },
    unmeasured={**_SEARCH, **_COMPARE, **_SETTINGS},
)
"""Of the command line and of `shardproof.plan` and `shardproof.pipeline`."""

AUDIT: Final = Combinations(
    "audit",
    (
        *("strategy", "against", "machine", "batch", "attention", "compare", "memory", "space_name", "train"),
        *(
            "recompute",
            "expert_loads",
            "operators",
            "precision",
            "pipeline",
            "carry",
            "joint",
            "rewritten",
            "engine",
            "effort",
            "time_limit",
            "work_limit",
        ),
        *("gap", *_REWRITES, *OUTPUT),
    ),
    (
        *(Needs(option, ("joint",), "it is of rewrites, which {joint} compares with") for option in _REWRITES),
        Needs("recompute", ("train",), "it says what a backward pass computes again; {train} sgd or {train} adam"),
        Needs("precision", ("train",), "it is of a training step; {train} sgd or {train} adam"),
        Needs("pipeline", ("train",), "it cuts training steps; {train} sgd or {train} adam"),
        Needs("against", ("train",), "two configurations of a training step are compared"),
        Apart(
            "against",
            (
                *("space_name", "pipeline", "carry", "joint", "rewritten", "engine", "effort"),
                *("time_limit", "work_limit", "gap", *OUTPUT[:1]),
            ),
            "it prices two configurations as they run, and searches nothing",
        ),
        Needs("train", ("machine",), "a step is audited on a machine"),
        Needs("train", ("kind=settings",), "only settings of a framework are audited as training steps"),
        Needs("rewritten", ("joint",), "it is another program of the model"),
        Apart("train", ("joint", "carry", "engine"), "steps are audited natively, as a whole and of one program"),
        Apart("train", _SAID, "stages are searched over whole spaces"),
        Apart("recompute=auto", ("train",), "the configuration says itself what it recomputes: none, all, or globs"),
        Apart("recompute=tensors", ("train",), "the configuration says itself what it recomputes: none, all, or globs"),
        Apart("pipeline=*:*:*", ("train",), "configurations are taken with one chunk a stage: STAGES:MICRO-BATCHES"),
        Apart("joint", _SAID, "equal programs are compared over whole spaces"),
        Apart(
            "kind=choices",
            (
                *("machine", "batch", "attention", "expert_loads", "operators", "compare", "memory", "space_name"),
                *("carry", "joint"),
            ),
            "it belongs to a selection problem, whose tables are given; for a model write "
            "{{operator: {{axis: {{level: degree}}}}}}",
        ),
        Apart("kind=layouts", ("carry",), "layouts say where tensors lie, and are carried by nobody"),
    ),
    kinds={
        "kind": {
            "choices": "a list of choices",
            "settings": "a file of a framework's settings",
            "layouts": "a file of layouts",
            "degrees": "a strategy by operators",
        }
    },
    neutral={
        "recompute": "none",
        "engine": "native",
        "rewrite_rounds": str(ROUNDS),
        "rewrite_nodes": str(MOST_NODES),
    },
    unmeasured={**FORCE, **LIMIT, **_COMPARE},
)

SOLVE: Final = Combinations(
    "solve",
    (
        *("show_options", "engine", "alone", "effort", "time_limit", "work_limit", "gap", "threads", "known"),
        *("settings", *OUTPUT),
    ),
    (
        Apart(
            "show_options",
            (
                *("engine", "alone", "effort", "time_limit", "work_limit", "gap", "threads", "known", "settings"),
                *("output", "force"),
            ),
            "it prints constants and solves nothing",
        ),
        Needs(
            "alone",
            ("engine",),
            "it says that another engine decides without the native search; {engine} ilp, smt or cp-sat",
        ),
        Apart("alone", ("known",), "the engine decides without what others found"),
        Apart("problem=egraph", ("engine", "alone", "threads"), "e-graphs have a search of their own, with one thread"),
        Apart("problem=egraph", ("known",), "choices are of selection problems"),
        Apart("problem=egraph", ("settings",), "they are constants of the search of selection problems"),
    ),
    kinds={"problem": {"egraph": "an e-graph", "selection": "a problem", "unread": "a PROBLEM"}},
    neutral={"engine": "native"},
    unmeasured={
        **_SEARCH,
        "gap": "what is proved optimal is within every gap",
        "effort": "it is a gap and a time, where these are not given",
        "settings": "a constant changes how much is searched: of a small problem mostly nothing",
    },
)

FITS: Final = Combinations(
    "fits",
    (
        *("machine", "strategy", "train", "batch", "attention", "compare", "operators", "memory", "reserve"),
        *("recompute", "precision", "time_limit", "work_limit", "as_json"),
    ),
    (
        Needs("recompute", ("train",), "it says what a backward pass computes again; {train} sgd or {train} adam"),
        Needs("precision", ("train",), "it is of a training step; {train} sgd or {train} adam"),
        Apart("recompute=auto", ("train",), "the setup says itself what it recomputes: none, all, or globs"),
        Apart("recompute=tensors", ("train",), "the setup says itself what it recomputes: none, all, or globs"),
    ),
    unmeasured={**LIMIT, **_COMPARE},
)

SWEEP: Final = Combinations(
    "sweep",
    ("output", "workers", "again", "as_json"),
    unmeasured={
        "workers": "how many plans are made at once changes none of them",
        "again": "rows that are there are planned again, with the same answers",
    },
)

PLACE: Final = Combinations(
    "place",
    (
        *("hierarchy", "axes", "reductions", "machine", "algorithm", "preset", "order", "reading", "engine"),
        *("target", "mesh", "experts", "ranks", "copies", "permuted", *OUTPUT),
    ),
    (
        Needs("experts", ("ranks",), "they are placed on ranks"),
        *(Needs(name, ("experts",), "it is of experts on ranks") for name in ("ranks", "copies", "permuted")),
        Apart("copies", ("permuted",), "experts with copies are no order of experts"),
        Apart(
            "experts",
            (
                *("hierarchy", "axes", "reductions", "machine", "algorithm", "preset", "order", "reading", "engine"),
                *("target", "mesh", "output"),
            ),
            "experts are placed by their tokens alone",
        ),
        *(
            Needs(name, ("reductions",), "placements alone have no price and no programs")
            for name in ("machine", "algorithm", "preset", "order", "reading")
        ),
        Needs("target", ("mesh",), "it says how that file is written"),
        Needs("mesh", ("target",), "it is written for one of these"),
        Needs("mesh", ("reductions",), "which placement is best depends on what is reduced"),
    ),
    unmeasured={
        **FORCE,
        "engine": "every engine finds the same",
        "order": "of one axis that is reduced there is one order",
        "reading": "it says which programs there are, of which the cheapest is often the same",
    },
)

REDUCE: Final = Combinations(
    "reduce",
    (
        *("hierarchy", "axes", "over", "matrix", "nodes", "machine", "payload", "algorithm", "preset", "order"),
        *("reading", "synthesis", "engine", "svg", "listed", *OUTPUT),
    ),
    (
        Apart("nodes", ("hierarchy", "axes", "over", "matrix"), "all devices of all nodes reduce"),
        Apart("nodes", ("preset", "order", "synthesis"), "nodes of different sizes have one order, linked costs"),
    ),
    neutral={"preset": "linked"},
    unmeasured={
        **FORCE,
        "engine": "every engine finds the same",
        "order": "of one axis that is reduced there is one order",
    },
)

CAPTURE: Final = Combinations("capture", ("ranks", "grad", "output", "force", "as_json"))

EQUAL: Final = Combinations(
    "equal",
    ("ranks", "grad", "layouts", "alike", "seed", "plan_file", "excess", "output", "force", "as_json"),
    (
        Apart("plan_file", ("grad",), "bytes are priced of the plan's own pass: plan with --train for its gradients"),
        Apart("plan_file", ("layouts",), "the exported file says where tensors lie"),
        Apart("plan_file", ("alike",), "what every rank receives is counted"),
        Needs("excess", ("plan_file",), "it is about bytes that a plan prices"),
        Apart("alike", ("ranks",), "its sizes say how many there are"),
        Apart("alike", ("layouts",), "places are to move with where ranks are, and values tell them"),
    ),
)

SCHEDULE: Final = Combinations(
    "schedule",
    (
        *(
            "stages",
            "micro_batches",
            "times",
            "send",
            "memory",
            "kind",
            "engine",
            "time_limit",
            "work_limit",
            "machine",
        ),
        *("output", "svg", "csv", "force", "as_json"),
    ),
    (
        Apart(
            "subject=graph",
            ("stages", "micro_batches", "times", "send", "memory", "kind", "csv"),
            "a graph has its own tasks; these are of pipelines",
        ),
        Needs("machine", ("subject=graph",), "a pipeline has {times}"),
    ),
    kinds={"subject": {"graph": "a GRAPH", "pipeline": "a pipeline"}},
    neutral={"engine": "native"},
    unmeasured={**FORCE, **LIMIT, "engine": "every engine finds schedules; the proof is native"},
)

_ONLY: Final = ("op", "instead", "errors", "symbolic", "time_limit", "work_limit")

EXPLAIN: Final = Combinations(
    "explain",
    (
        "op",
        "instead",
        "errors",
        "symbolic",
        "cost",
        "state",
        "pcg",
        "svg",
        "force",
        "time_limit",
        "work_limit",
        "as_json",
    ),
    (
        Needs("instead", ("op",), "the operator whose placement is to be changed"),
        Needs("symbolic", ("op",), "the operator whose reads and writes are shown"),
        Apart(
            "symbolic", ("instead", "errors", "time_limit", "work_limit"), "it shows formulas, and searches for nothing"
        ),
        Apart("instead", ("errors",), "it prices one change exactly"),
        Apart("cost", (*_ONLY, "state", "pcg"), "it prints every operator, and nothing else"),
        Apart("state", (*_ONLY, "pcg"), "it prints every trained parameter, and nothing else"),
        Apart("pcg", _ONLY, "it prints the whole graph, and nothing else"),
        Apart(
            "plan_file=pipelined",
            (*_ONLY, "cost", "state", "pcg"),
            "it is explained as a whole, {svg} beside it",
        ),
        Apart("plan_file=joint", ("errors",), "its bound is about all equal programs, not about this one alone"),
        Apart("plan_file=overlapped", (*_ONLY, "cost", "state", "pcg"), "it is explained as a whole, {svg} beside it"),
        Apart("plan_file=views", (*_ONLY, "cost", "state", "pcg"), "it is explained as a whole"),
        Needs(
            "svg",
            ("pcg", "plan_file=pipelined", "plan_file=overlapped"),
            "it draws the parallel computation graph, or a schedule",
        ),
    ),
    kinds={"plan_file": PLAN_KINDS},
    unmeasured={**FORCE, **LIMIT},
)

SENSITIVITY: Final = Combinations(
    "sensitivity",
    ("solve_limit", "time_limit", "work_limit", "as_json"),
    unmeasured={**LIMIT, "solve_limit": "what takes less time is the same"},
)
REPORT: Final = Combinations(
    "report", ("output", "force", "time_limit", "work_limit", "as_json"), unmeasured={**FORCE, **LIMIT}
)
DIFF: Final = Combinations(
    "diff", ("output", "force", "time_limit", "work_limit", "as_json"), unmeasured={**FORCE, **LIMIT}
)

_MEASURING: Final = ("model", "train", "batch", "backend", "rounds", "time_limit")

CALIBRATE: Final = Combinations(
    "machine calibrate",
    (
        *("timings", "files", "operation", "plan", "keep", "conditions", "held", "latencies", "model", "train"),
        *("batch", "backend", "rounds", "time_limit", "save", *OUTPUT),
    ),
    (
        Needs("train", ("model",), "it makes a training step of the model that is measured"),
        Needs("batch", ("model",), "it is the batch of the model that is measured"),
        Apart("files", ("timings", "save", "latencies", *_MEASURING), "files are read, and nothing is measured"),
        *(
            Needs(name, ("files",), "it says how files are read")
            for name in ("operation", "plan", "keep")
        ),
        Apart("timings", ("save", *_MEASURING), "timings are read, and nothing is measured"),
    ),
    unmeasured={**FORCE, **TIME, "latencies": "they are fitted anyway where timings are measured here"},
)  # fmt: skip

_JOBS: Final = {**FORCE, **LIMIT, "jobs": "verdicts do not depend on it"}
PROVE: Final = Combinations("rules prove", ("time_limit", "work_limit", "jobs", "degree", *OUTPUT), unmeasured=_JOBS)
REFUTE: Final = Combinations("rules refute", ("time_limit", "work_limit", "jobs", "degree", *OUTPUT), unmeasured=_JOBS)
DERIVE: Final = Combinations(
    "rules derive", ("source", "steps", "only", "time_limit", "work_limit", "jobs", *OUTPUT), unmeasured=_JOBS
)
DTENSOR: Final = Combinations(
    "rules dtensor", ("only", "operators", "reduction", "time_limit", "work_limit", "jobs", *OUTPUT), unmeasured=_JOBS
)
GENERATE: Final = Combinations(
    "rules generate",
    ("most", "pools", "operators", "journal", "jobs", *OUTPUT),
    unmeasured={**FORCE, "jobs": "verdicts do not depend on it", "journal": "it keeps progress of the same work"},
)
SHOW: Final = Combinations(
    "rules show",
    ("file", "svg", "flexflow", "smtlib", "force", "as_json"),
    (Apart("rule=all", ("svg", "smtlib"), "they are of one rule: name it"),),
    kinds={"rule": {"all": "a list of all rules"}},
    unmeasured=FORCE,
)
