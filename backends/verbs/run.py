"""The verb `run`: execute a checked plan on virtual or MPI ranks and compare with one process."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Final

import click
import numpy as np

from ...models.communication.root import root_transfers
from ...models.files.output import open_output
from ...models.program.graph import Graph
from ...models.program.opaque import OpaqueError
from ...models.program.operators import HOST_COPIES
from ...models.program.sized import SizedGraph
from ...models.terminal.combinations import FORCE, OUTPUT, PLAN_KINDS, Apart, Combinations, Needs
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    AMOUNT,
    BATCH,
    FACTOR,
    RANKS,
    REPEATS,
    SECONDS,
    SEED,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
    replaces_files,
    require_combination,
)
from ...models.text import InputError
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.plan.bundle import Plan
from ...proofs.portfolio.sizes import SizesHead
from ...proofs.publishing.kind import plan_kind
from ...proofs.publishing.placed import placed_plan
from ...proofs.publishing.publisher import Publisher
from ...proofs.views.certificate import SubmeshCertificate
from ..cluster.spread import Spread, current_spread, spread_over
from ..execution.array_files import array_shapes
from ..execution.consent import allow, check_consent
from ..execution.libraries import array_module, check_library
from ..kernels import Array
from ..lowering.movements import beside, render, root_lines, total
from ..lowering.movements import table as movement_table
from ..lowering.program import lower
from ..lowering.traffic import statistics_traffic
from .nodes import check_mpi, node_options, on_machine, rank_place
from .overlapped import run_overlapped
from .pipelined import run_pipelined
from .placed import Placed, run_placed
from .programs import Drawn, ProgramRun, run_programs
from .scheduled import RunRequest
from .train import Training, run_training, training_options

RUN: Final = Combinations(
    "run",
    (
        *("ranks", "backend", "virtual", "inputs", "seed", "dtype", "kernels", "timeout", "trace", "overlap", "fuse"),
        *("pace", "from_root", "communication", "steps", "data", "save", "save_every", "resume", "compare"),
        *("payload", "repeats", "size", "hostfile", "heartbeat", *OUTPUT),
    ),
    (
        *(
            Apart(alone, ("hostfile", "heartbeat"), "it starts no ranks of MPI")
            for alone in ("virtual", "communication", "plan_file=reduction")
        ),
        Apart("inputs", ("seed",), "the inputs are those of the file: nothing is made from a seed"),
        Apart(
            "communication",
            (
                *("backend", "virtual", "inputs", "seed", "dtype", "kernels", "timeout", "trace", "overlap", "fuse"),
                *("pace", "from_root", "steps", "output", "force"),
            ),
            "it starts no ranks, and prints what they would send",
        ),
        Apart(
            "steps",
            ("trace", "pace", "from_root", "backend=cupy"),
            "many steps are run on processors, as fast as they can, untraced",
        ),
        Apart(
            "resume", ("inputs", "seed", "dtype"), "values, seed and element types are those of the state that goes on"
        ),
        *(
            Needs(option, ("steps",), "it is said of many steps, one after another")
            for option in ("data", "save", "resume", "compare")
        ),
        Needs("save_every", ("save",), "it says how often that is written"),
        *(
            Apart(
                f"plan_file={kind}",
                ("from_root", "communication", "kernels", "backend=cupy", "overlap", "fuse"),
                "it runs in the order of its schedule, on processors and without kernels of your own",
            )
            for kind in ("pipelined", "overlapped")
        ),
        Apart(
            "plan_file=reduction",
            (
                *("backend", "inputs", "dtype", "kernels", "trace", "overlap", "fuse", "pace", "from_root"),
                *("communication", "steps", "data", "save", "save_every", "resume", "compare", "output", "force"),
            ),
            "it sums drawn integers on every device, and its result is that sum",
        ),
        Apart("plan_file=sizes", ("steps",), "a step is of one size: plan that with one number for the size"),
        Needs("size", ("plan_file=sizes",), "other plans are of one size"),
        Apart("size", ("inputs",), "the size is that of the data"),
        *(
            Needs(option, ("plan_file=reduction",), "plans have the data of their model, and are run once")
            for option in ("payload", "repeats")
        ),
        Needs("pace", ("plan_file=pipelined", "plan_file=overlapped"), "only these have a schedule to keep pace with"),
    ),
    kinds={"plan_file": PLAN_KINDS},
    unmeasured={
        **FORCE,
        "timeout": "what takes less time is the same",
        "hostfile": "ranks elsewhere compute the same",
        "heartbeat": "a job that lives is the same",
        "backend": "every library computes the same",
        "overlap": "the order of a rank's work, not its result",
        "save_every": "more states are written, all of them the run's",
        "fuse": "how chains of operators are run, not their result",
        "from_root": "where data begin and end, not what comes out",
        "kernels": "permits a function where the plan names it",
    },
)


@dataclass(frozen=True)
class RunOptions:
    """The command line of `run`."""

    plan_file: Path
    ranks: int
    backend: str
    virtual: bool
    inputs: Path | None
    seed: int
    dtype: str | None
    kernels: tuple[str, ...]
    timeout: float
    trace: Path | None
    overlap: bool
    fuse: bool
    pace: float | None
    from_root: bool
    communication: bool
    payload: int | None
    repeats: int
    size: int | None
    output: Path | None
    as_json: bool
    steps: int | None
    data: str | None
    save: Path | None
    save_every: int | None
    resume: Path | None
    compare: bool
    hostfile: Path | None
    heartbeat: float

    @property
    def starts_mpi(self) -> bool:
        """Whether ranks are processes of MPI."""
        return not (self.virtual or self.communication)

    @property
    def library(self) -> str:
        """Who computes operators on hosts."""
        return self.backend if self.backend in ("numba", "torch") else "numpy"

    def request(self) -> RunRequest:
        """A run of a model's plan."""
        return RunRequest(
            ranks=self.ranks,
            virtual=self.virtual,
            inputs=self.inputs,
            seed=self.seed,
            dtype=self.dtype,
            timeout=self.timeout,
            trace=self.trace,
            output=self.output,
            write=write_arrays,
            as_json=self.as_json,
            pace=self.pace or 0.0,
            library=self.library,
            from_root=self.from_root,
        )

    def pick_size(self, head: SizesHead, programs: SizedGraph) -> int:
        """The size that is meant, of those of a file: that of the data, or the one that is given."""
        if self.inputs is not None:
            shapes = array_shapes(self.inputs)
            if (found := programs.size_of(shapes.get)) is not None:
                return found
            raise InputError(f"{self.inputs}: holds no array that grows with {head.name}: {', '.join(sorted(shapes))}")
        if self.size is None:
            raise InputError(f"{self.plan_file}: is for {head.words}: say which, --size {head.sizes[0]} or --inputs")
        return self.size

    def program_run(self) -> ProgramRun:
        """A run of reduction programs."""
        drawn = Drawn(self.payload, self.repeats)
        return ProgramRun(self.ranks, self.virtual, self.seed, self.timeout, drawn, self.as_json)

    def training(self, steps: int) -> Training:
        """Many steps, one after another."""
        return Training(
            steps=steps,
            data=self.data,
            save=self.save,
            every=self.save_every,
            resume=self.resume,
            compared=self.compare,
            force=replaces_files(),
            kernels=self.kernels,
            fuse=self.fuse,
            overlap=self.overlap,
        )


@click.command("run")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "-n", "ranks", type=RANKS, required=True, help="Number of ranks; must be the number of devices of the plan."
)
@click.option(
    "--backend",
    type=click.Choice(["numpy", "numba", "torch", "cupy", "auto"]),
    default="auto",
    show_default=True,
    help="Who computes: NumPy; the same with chains as loops that numba compiles, for many steps; PyTorch on the same "
    "memory; or CuPy (auto: CuPy if a GPU answers, else NumPy).",
)
@click.option("--virtual", is_flag=True, help="All ranks in this process, no MPI; counts the bytes moved.")
@click.option(
    "--inputs", type=click.Path(dir_okay=False, path_type=Path), help="An .npz file with every input and parameter."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the inputs when none are given.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "own"]),
    help="Type of floating inputs; own: every tensor in its own type, rounded to it by every operator "
    "(default: own after --precision, else float64).",
)
@click.option(
    "--allow-kernel",
    "kernels",
    multiple=True,
    metavar="MODULE:NAME",
    help="Let this function of yours run where the plan names it; may be repeated.",
)
@click.option(
    "--timeout",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Seconds before the ranks are ended; with --steps without a step that ends.",
)
@output_option("--trace", help="Write times here, for chrome://tracing or Perfetto (JSON).")
@click.option(
    "--overlap/--no-overlap", default=True, show_default=True, help="Communicate beside independent computation."
)
@click.option("--fuse/--no-fuse", default=True, show_default=True, help="Run chains of elementwise operators as one.")
@click.option(
    "--pace",
    type=FACTOR,
    metavar="FACTOR",
    help="Of plans with a schedule: every task lasts at least FACTOR times its planned time.",
)
@click.option(
    "--from-root",
    is_flag=True,
    help="Inputs lie on rank 0 alone and are scattered from it, outputs are gathered to it: the reshardings "
    "that --communication prices, which no claim of a plan counts.",
)
@click.option(
    "--communication",
    is_flag=True,
    help="Start no ranks: print every resharding, who solves it and why, and its bytes beside a lower bound.",
)
@click.option(
    "--bytes",
    "payload",
    type=AMOUNT,
    help="Of a reduction program: drawn data per device (default: what it is priced for, at most 1 MiB).",
)
@click.option(
    "--repeat",
    "repeats",
    type=REPEATS,
    default=9,
    show_default=True,
    help="Of a reduction program: timed repetitions beside one plain all-reduce (0: none).",
)
@click.option(
    "--size",
    type=BATCH,
    help="Of a file of plans for a range of sizes: the size that is run (with --inputs it is that of the data).",
)
@training_options
@node_options
@output_option("-o", "--output", help="Write the outputs here (.npz).")
@force_option
@json_option
@click.pass_obj
@refuse_combinations(RUN)
@options_as(RunOptions)
def run_command(publisher: Publisher, options: RunOptions) -> int:
    """Execute PLAN on N ranks and compare the result with one process; with --steps train it.  Of a reduction program
    (`reduce -o`, `place -o`): compare with the sum, and time it beside one plain all-reduce.
    """
    spread = rank_place(Spread(hostfile=options.hostfile, limit_s=options.heartbeat), options.ranks, options.starts_mpi)
    if (kind_of_plan := plan_kind(options.plan_file)) is not None:
        require_combination(RUN, plan_file=kind_of_plan)
    if kind_of_plan == "reduction":
        check_mpi(options.virtual, options.ranks, spread)
        return run_programs(options.plan_file, *publisher.programs(options.plan_file), options.program_run())
    check_library(options.library)
    with Watch("checking the plan"):
        if kind_of_plan == "sizes":
            found = publisher.open_sized(options.plan_file, options.pick_size)
        else:
            found = publisher.open(options.plan_file).with_choices()
    _check_ranks(found.held.machine.devices, options.ranks)
    _say_what_is_idle(found.held, options.backend, options.fuse and options.dtype != "own")
    if not options.communication:
        check_mpi(options.virtual, options.ranks, spread)
    click.get_current_context().with_resource(spread_over(on_machine(spread, found.held.machine)))
    if options.steps is not None:
        return run_training(found, options.plan_file, options.request(), options.training(options.steps))
    match found.held:
        case PipelineCertificate() as pipelined:
            return run_pipelined(pipelined, found.identity, options.request())
        case OverlapCertificate() as overlapped:
            return run_overlapped(overlapped, found.identity, found.scale, options.request(), found.user_graph)
        case SubmeshCertificate() as viewed:
            placed = Placed(placed_plan(viewed), found.identity, found.user_graph)
        case Plan() as plan:
            placed = Placed(plan, found.identity, found.user_graph)
    if options.communication:
        return _communication(placed.plan, placed.identity, options.as_json)
    return _run_placements(placed, options)


def _run_placements(placed: Placed, options: RunOptions) -> int:
    """Run one program and its placements, with the functions of the user's that were allowed."""
    graph = placed.plan.graph
    try:
        for name in options.kernels:
            allow(name)
        check_consent(graph)
    except OpaqueError as error:
        raise InputError(str(error)) from None
    xp = _arrays_for(graph, options.backend)
    click.get_current_context().with_resource(spread_over(replace(current_spread(), on_gpus=xp is not np)))
    return run_placed(placed, options.request(), xp, options.fuse, options.overlap)


def _arrays_for(graph: Graph, backend: str) -> ModuleType:
    """Whose arrays hold blocks; `InputError` where these do not lie on hosts and the plan says which do."""
    xp = array_module(backend)
    if xp is not np and any(op.function in HOST_COPIES for op in graph.operators):
        raise InputError("copies of tensors to hosts are executed on hosts alone so far: --backend numpy")
    return xp


def _say_what_is_idle(held: object, backend: str, fuse: bool) -> None:
    """Where nothing is fused, numba has no chains to compile: say so."""
    if backend == "numba" and (not fuse or isinstance(held, PipelineCertificate | OverlapCertificate)):
        words = "stages, overlapped streams, --no-fuse and --dtype own fuse nothing: operators run on NumPy"
        say(f"note: --backend numba compiles fused chains; {words}", err=True)


def _check_ranks(devices: int, ranks: int) -> None:
    if ranks != devices:
        raise InputError(
            f"the plan is for {devices} devices, -n asks for {ranks} ranks; run it with -n {devices}, or plan for "
            f"'localhost:{ranks}' and run that"
        )


def _communication(plan: Plan, identity: str, as_json: bool) -> int:
    rows = movement_table(plan.graph, plan.machine.hierarchy, plan.choices, plan.machine)
    statistics = statistics_traffic(lower(plan.graph, plan.machine.hierarchy, plan.choices, plan.machine))
    root = tuple(root_transfers(plan.graph, plan.machine, plan.choices))
    moved, bound = total(plan.graph, plan.machine.hierarchy, plan.choices)
    if as_json:
        emit(
            {
                "identity": identity,
                "redistributions": [asdict(r) for r in rows],
                "statistics": [asdict(t) for t in statistics],
                "bytes": {"moved": moved, "bound": bound},
                "root": [
                    {"tensor": m.tensor, "kind": m.direction, "moved": m.moved, "bound": m.least}
                    | {"seconds": float(m.seconds)}
                    for m in root
                ],
            }
        )
        return Exit.DONE
    say(f"{plan.graph.name}: plan {identity[:16]}, {len(rows)} reshardings on {plan.machine.devices} ranks")
    for line in render(rows):
        say("  " + line)
    say("  " + beside(moved, bound, " bytes are received in all"))
    for t in statistics:
        why = f"  {'; '.join(t.reasons)}" if t.reasons else ""
        say(
            f"  {t.tensor}: all-reduce, "
            f"{beside(t.moved * t.element_bytes, t.bound * t.element_bytes, ' bytes received by all ranks')}{why}"
        )
    for line in root_lines(root):
        say("  " + line)
    return Exit.DONE


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """An .npz file of the arrays, all of it or nothing.  (`np.savez` takes names as keywords, so that a tensor
    called `file` stops it.)
    """
    with open_output(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name in sorted(arrays):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(arrays[name]), allow_pickle=False)
