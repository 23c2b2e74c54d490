"""This module holds verbs of the models room: `import` and `machine show`."""

from __future__ import annotations

from pathlib import Path

import click

from ..files.json_text import parse_json
from ..files.output import write_file
from ..machine.machine import builtin_names, load_machine
from ..machine.text import render
from ..program.contents import write_beside
from ..program.graph import Graph
from ..sources.load import Attention, load_model
from ..sources.precision import mixed
from ..sources.precision import parsed as parsed_precision
from ..sources.training import TrainingStep, build_step
from ..sources.training.accumulation import accumulated
from ..terminal.console import Exit, emit, say
from ..terminal.options import BATCH, Count, attention_option, force_option, json_option, output_option
from .optimizer import LOSS, OPTIMIZER, PRECISION, PRECISION_HELP


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
    help="With --train: blocks computed again in the backward pass (none, all, or globs such as 'layer*').",
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
@click.option("--list-ops", is_flag=True, help="List the supported ONNX, PyTorch, NumPy and JAX operators and stop.")
@json_option
def import_command(
    file: str | None,
    batch: int | None,
    train: str | None,
    loss: str | None,
    recompute: str,
    precision: str | None,
    micro_batch: int,
    attention: Attention | None,
    expert_places: int | None,
    output: Path | None,
    list_ops: bool,
    as_json: bool,
) -> int:
    """Read a model and write it as our own JSON graph."""
    if list_ops:
        from ..sources.jax import handlers as jax_handlers
        from ..sources.numpy import trace as numpy_trace
        from ..sources.onnx import importer as onnx
        from ..sources.torch import importer as torch

        kinds = {
            "onnx": onnx.supported_operators(),
            "torch": torch.supported_operators(),
            "numpy": numpy_trace.supported(),
            "jax": sorted(jax_handlers.HANDLERS),
        }
        if as_json:
            emit({"operators": {kind: list(names) for kind, names in kinds.items()}})
        else:
            say(*(name for names in kinds.values() for name in names))
        return Exit.DONE
    if file is None:
        raise click.UsageError(
            "give a model: a zoo name, an ONNX file, FILE.py:NAME (NumPy, PyTorch or JAX) or a .pt2 program"
        )
    notes: list[str] = []
    graph = load_model(file, batch, notes.append, attention, expert_places, trained=True)  # a plan may train it
    step = training_of(graph, train, loss, recompute, precision)
    if step is None and micro_batch > 1:
        raise click.UsageError("--micro-batch cuts a training step: give --train sgd or --train adam too")
    step = None if step is None else accumulated(step, micro_batch)
    graph = in_precision(graph, precision) if step is None else step.graph
    if output is not None:
        write_file(output, graph.to_json().encode("ascii") + b"\n")
        constants = write_beside(output, graph)
    if as_json:
        emit(
            {
                "name": graph.name,
                "operators": len(graph.operators),
                "tensors": len(graph.tensors),
                "sha256": graph.sha256(),
                **({} if step is None else {"loss": step.loss, "trained": len(step.trained)}),
                **({"notes": notes} if notes else {}),
            }
        )
        return Exit.DONE
    counts: dict[str, int] = {}
    for op in graph.operators:
        counts[op.function] = counts.get(op.function, 0) + 1
    say(f"{graph.name}: {len(graph.operators)} operators, {len(graph.tensors)} tensors, sha256 {graph.sha256()[:16]}")
    say("  " + ", ".join(f"{n} {f}" for f, n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))))
    say(*(f"  note: {note}" for note in notes))
    if step is not None:
        say(
            f"  {train}: {step.loss}; {len(step.trained)} weights are updated"
            + (f", {len(step.constant)} are constant" if step.constant else "")
        )
    if output is not None:
        say(f"wrote {output}" + (f" and its constants {constants}" if constants is not None else ""))
    return Exit.DONE


def check_training(train: str | None, loss: str | None, recompute: str) -> None:
    """Raises `UsageError` where `--loss` or `--recompute` stands without `--train`."""
    if train is None and recompute != "none":
        raise click.UsageError(
            "--recompute says what a backward pass computes again: give --train sgd or --train adam too"
        )
    if train is None and loss is not None:
        raise click.UsageError("--loss says what a training step minimises: give --train sgd or --train adam too")


def in_precision(graph: Graph, precision: str | None) -> Graph:
    """A forward graph as `--precision` asks for it."""
    return graph if precision is None else mixed(graph, parsed_precision(precision))


def training_of(
    graph: Graph, train: str | None, loss: str | None, recompute: str = "none", precision: str | None = None
) -> TrainingStep | None:
    """The training step that `--train`, `--loss`, `--recompute` and `--precision` ask for; None without `--train`."""
    check_training(train, loss, recompute)
    return None if train is None else build_step(graph, train, loss, recompute=recompute, precision=precision)


@click.group("machine")
def machine_command() -> None:
    """Machine descriptions."""


@machine_command.command("show")
@click.argument("name", required=False)
@json_option
def machine_show(name: str | None, as_json: bool) -> int:
    """Show a machine with every constant and its source; without NAME list the built-in machines."""
    if name is None:
        if as_json:
            emit({"machines": list(builtin_names())})
        else:
            say(*builtin_names())
        return Exit.DONE
    machine = load_machine(name)
    if as_json:
        document = parse_json(machine.to_json())
        assert isinstance(document, dict)
        emit({"sha256": machine.sha256(), **document})
    else:
        say(render(machine))
    return Exit.DONE
