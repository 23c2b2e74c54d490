"""Verbs of the models room: `import` and `machine show`."""

from __future__ import annotations

from pathlib import Path

import click

from .console import Exit, emit
from .frontends.load import load_model
from .machine import builtin_names, load_machine
from .machine_text import render


@click.command("import")
@click.argument("file", required=False)
@click.option("--batch", type=int, help="Replace the batch size of an ONNX file or zoo model.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the graph here (JSON).")
@click.option("--list-ops", is_flag=True, help="List the supported ONNX operators and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_command(file: str | None, batch: int | None, output: Path | None, list_ops: bool, as_json: bool) -> int:
    """Read a model and write it as our own JSON graph."""
    if list_ops:
        from .frontends.onnx import supported_operators

        click.echo("\n".join(supported_operators()))
        return Exit.DONE
    if file is None:
        raise click.UsageError("give a model: a zoo name or an ONNX file")
    graph = load_model(file, batch)
    if output is not None:
        output.write_text(graph.to_json() + "\n", encoding="ascii")
    if as_json:
        emit({"name": graph.name, "operators": len(graph.operators), "tensors": len(graph.tensors), "sha256": graph.sha256()})
        return Exit.DONE
    counts: dict[str, int] = {}
    for op in graph.operators:
        counts[op.function] = counts.get(op.function, 0) + 1
    click.echo(f"{graph.name}: {len(graph.operators)} operators, {len(graph.tensors)} tensors, sha256 {graph.sha256()[:16]}")
    click.echo("  " + ", ".join(f"{n} {f}" for f, n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))))
    if output is not None:
        click.echo(f"wrote {output}")
    return Exit.DONE


@click.group("machine")
def machine_command() -> None:
    """Machine descriptions."""


@machine_command.command("show")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def machine_show(name: str | None, as_json: bool) -> int:
    """Show a machine with every constant and its source; without NAME list the built-in machines."""
    if name is None:
        if as_json:
            emit({"machines": list(builtin_names())})
        else:
            click.echo("\n".join(builtin_names()))
        return Exit.DONE
    machine = load_machine(name)
    if as_json:
        import json

        emit({"sha256": machine.sha256(), **json.loads(machine.to_json())})
    else:
        click.echo(render(machine))
    return Exit.DONE
