"""Verbs of the models room: `import` and `machine show`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from ..files.json_text import parse_json
from ..files.output import write_file
from ..machine.machine import builtin_names, load_machine
from ..machine.text import outline, render
from ..program.contents import write_beside
from ..program.graph import Graph
from ..sources.building.original import Comparer, Comparison
from ..sources.compared import Reading, load_compared
from ..sources.load import Attention
from ..sources.precision import mixed_precision
from ..sources.precision import parse_precision as parsed_precision
from ..sources.training import TrainingStep, build_step
from ..sources.training.accumulation import accumulate
from ..terminal.combinations import FORCE, Apart, Combinations, Needs
from ..terminal.console import Exit, emit, say
from ..terminal.options import (
    BATCH,
    Count,
    attention_option,
    compare_option,
    force_option,
    json_option,
    operator_option,
    options_as,
    output_option,
    refuse_combinations,
)
from .optimizer import LOSS, OPTIMIZER, PRECISION, PRECISION_HELP

_READING: Final = (
    *("batch", "train", "loss", "recompute", "precision", "micro_batch", "attention", "compare", "expert_places"),
    *("output", "force", "operators"),
)
IMPORT: Final = Combinations(
    "import",
    (*_READING, "list_ops", "as_json"),
    (
        Apart("list_ops", _READING, "it lists operators and reads nothing"),
        Needs("loss", ("train",), "it says what a training step minimises; {train} sgd or {train} adam"),
        Needs("recompute", ("train",), "it says what a backward pass computes again; {train} sgd or {train} adam"),
        Needs("micro_batch", ("train",), "it cuts the batch of a training step; {train} sgd or {train} adam"),
        Apart("recompute=auto", ("train",), "how many blocks pay is what plan searches for; give the blocks"),
        Apart("recompute=tensors", ("train",), "which tensors pay is what plan searches for; give the blocks"),
    ),
    neutral={"recompute": "none"},
    unmeasured={**FORCE, "compare": "whether an import is looked at changes no graph"},
)


@dataclass(frozen=True)
class ImportOptions:
    """The command line of `import`."""

    file: str | None
    batch: int | None
    train: str | None
    loss: str | None
    recompute: str
    precision: str | None
    micro_batch: int
    attention: Attention | None
    expert_places: int | None
    output: Path | None
    compare: bool
    operators: tuple[Path, ...]
    list_ops: bool
    as_json: bool


@click.command("import")
@click.argument("file", required=False)
@click.option(
    "--batch", type=BATCH, help="Replace the batch size of an ONNX file or zoo model; handed to a PyTorch factory."
)
@click.option("--train", type=OPTIMIZER, help="Make it one training step: forward, backward, optimizer.")
@click.option("--loss", help=LOSS)
@click.option(
    "--recompute",
    default="none",
    show_default=True,
    help="With --train: blocks computed again in the backward pass (none, all, attention: its scores alone, or globs "
    "such as 'layer*').",
)
@click.option("--precision", type=PRECISION, help=PRECISION_HELP)
@click.option(
    "--micro-batch",
    type=Count(1, 1 << 20),
    default=1,
    help="With --train: equal micro-batches that the batch is cut into.",
)
@attention_option
@click.option(
    "--expert-places",
    type=Count(0, 1 << 20),
    help="Places of every expert of a PyTorch program in every sentence, in percent of its even share (0: one for "
    "every token and choice); tokens beyond are dropped.  Without it none is, and experts are grouped products.",
)
@output_option("-o", "--output", help="Write the graph here (JSON).")
@force_option
@compare_option
@operator_option
@click.option("--list-ops", is_flag=True, help="List the supported ONNX, PyTorch, NumPy and JAX operators and stop.")
@json_option
@click.pass_obj
@refuse_combinations(IMPORT)
@options_as(ImportOptions)
def import_command(comparer: Comparer, options: ImportOptions) -> int:
    """Read a model and write it as our own JSON graph."""
    if options.list_ops:
        if options.file is not None:
            raise click.UsageError("--list-ops lists operators and reads nothing: leave out the model")
        _list_operators(options.as_json)
        return Exit.DONE
    if options.file is None:
        raise click.UsageError(
            "give a model: a zoo name, an ONNX file, FILE.py:NAME (NumPy, PyTorch or JAX) or a .pt2 program"
        )
    notes: list[str] = []
    how = Reading(
        batch=options.batch,
        attention=options.attention,
        expert_places=options.expert_places,
        compare=options.compare,
        trained=options.train is not None,
        kept=True,
        operators=options.operators,
    )
    graph, compared = load_compared(comparer, options.file, how, notes.append)
    step = training_of(graph, options.train, options.loss, options.recompute, options.precision)
    step = None if step is None else accumulate(step, options.micro_batch)
    graph = in_precision(graph, options.precision) if step is None else step.graph
    if options.output is not None:
        write_file(options.output, _file_text(graph, compared).encode("ascii") + b"\n")
        constants = write_beside(options.output, graph)
    if options.as_json:
        emit(_import_json(graph, step, notes, compared))
        return Exit.DONE
    say(*_graph_lines(graph), *(f"  note: {note}" for note in notes))
    if compared is not None:
        say(f"  {compared.words}")
    if step is not None:
        say(
            f"  {options.train}: {step.loss}; {len(step.trained)} weights are updated"
            + (f", {len(step.constant)} are constant" if step.constant else "")
        )
    if options.output is not None:
        say(f"wrote {options.output}" + (f" and its constants {constants}" if constants is not None else ""))
    return Exit.DONE


def _import_json(
    graph: Graph, step: TrainingStep | None, notes: list[str], compared: Comparison | None
) -> dict[str, object]:
    """What was read, as `import --json` prints it."""
    return {
        "name": graph.name,
        "operators": len(graph.operators),
        "tensors": len(graph.tensors),
        "sha256": graph.sha256(),
        **({} if step is None else {"loss": step.loss, "trained": len(step.trained)}),
        **({"notes": notes} if notes else {}),
        **({} if compared is None else {"compared": compared.to_json()}),
    }


def _list_operators(as_json: bool) -> None:
    """Everything that the frontends translate."""
    from ..sources.jax import handlers as jax_handlers
    from ..sources.numpy import trace as numpy_trace
    from ..sources.onnx import importer as onnx
    from ..sources.torch import importer as torch

    kinds = {
        "onnx": onnx.supported_operators(),
        "torch": torch.supported_operators(),
        "numpy": numpy_trace.supported_functions(),
        "jax": sorted(jax_handlers.HANDLERS),
    }
    if as_json:
        emit({"operators": {kind: list(names) for kind, names in kinds.items()}})
    else:
        say(*(name for names in kinds.values() for name in names))


def _graph_lines(graph: Graph) -> list[str]:
    """Size and identity of a graph, and its functions by how often they occur."""
    counts: dict[str, int] = {}
    for op in graph.operators:
        counts[op.function] = counts.get(op.function, 0) + 1
    size = f"{len(graph.operators)} operators, {len(graph.tensors)} tensors"
    return [
        f"{graph.name}: {size}, sha256 {graph.sha256()[:16]}",
        "  " + ", ".join(f"{n} {f}" for f, n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))),
    ]


def _file_text(graph: Graph, compared: Comparison | None) -> str:
    """The graph as JSON, and what it was compared with: readers pass over that, and identities are without it."""
    text = graph.to_json()
    return text if compared is None else f"{text[:-1]}, {json.dumps('compared')}: {json.dumps(compared.words)}}}"


def in_precision(graph: Graph, precision: str | None) -> Graph:
    """A forward graph as `--precision` asks for it."""
    return graph if precision is None else mixed_precision(graph, parsed_precision(precision))


def training_of(
    graph: Graph, train: str | None, loss: str | None, recompute: str = "none", precision: str | None = None
) -> TrainingStep | None:
    """The training step that `--train`, `--loss`, `--recompute` and `--precision` ask for; None without `--train`."""
    return None if train is None else build_step(graph, train, loss, recompute=recompute, precision=precision)


@click.group("machine")
def machine_command() -> None:
    """Machine descriptions."""


@machine_command.command("show")
@click.argument("name", required=False)
@json_option
@refuse_combinations(Combinations("machine show", ("as_json",)))
def machine_show(name: str | None, as_json: bool) -> int:
    """Show a machine with every constant and its source; without NAME list the built-in machines."""
    if name is None:
        if as_json:
            emit({"machines": list(builtin_names())})
        else:
            say(*(outline(load_machine(builtin)) for builtin in builtin_names()))
        return Exit.DONE
    machine = load_machine(name)
    if as_json:
        document = parse_json(machine.to_json())
        assert isinstance(document, dict)
        emit({"sha256": machine.sha256(), **document})
    else:
        say(render(machine))
    return Exit.DONE
