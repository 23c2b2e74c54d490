"""Which architectures import, and which of them become a training step: the page tests/benchmarks/results/architectures.md.

    python tests/benchmarks/architectures.py [--only GLOB ..] [--families NAME ..] [--again] [--failed]
                                             [--seconds 60] [--gigabytes 4] [--results FILE.json]
    python tests/benchmarks/architectures.py --page        writes the page from the results

What is tried is the public command, `shardproof import FILE.py:NAME [--train adam] -o graph.json`, each in a process of
its own under a limit of processor time and memory; the written graph is read back.  Results are kept in a JSON file after each
try, so that an interrupted run goes on where it stopped; the page holds no times of the day and is the same for equal
results.  The entries are in `published/`, one module per library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
LISTS = HERE / "published"
RESULTS = HERE / "results" / "architectures.json"
PAGE = HERE / "results" / "architectures.md"
MODULES = (
    "hf_decoders",
    "hf_encoders",
    "hf_vision",
    "hf_modalities",
    "held_models",
    "torchvision_models",
    "timm_models",
    "diffusers_models",
    "plain_modules",
    "recent_models",
)
LIBRARIES = {
    "hf": "transformers",
    "torchvision": "torchvision",
    "timm": "timm",
    "diffusers": "diffusers",
    "plain": "plain PyTorch",
    "recent": "of all, recent",
    "held": "of all, held out",
}


@dataclass(frozen=True)
class Entry:
    """Where an architecture is, and what it is called."""

    module: str
    name: str
    family: str
    title: str
    labelled: bool

    @property
    def key(self) -> str:
        """Its place in the results."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True)
class Result:
    """What became of one try: `operators` of the written graph, `reason` of a refusal."""

    good: bool
    seconds: float
    gigabytes: float
    operators: int = 0
    reason: str = ""


def entries(modules: tuple[str, ...] = MODULES) -> Iterator[Entry]:
    """All architectures, in the order of the lists; imports the libraries."""
    from importlib import import_module

    sys.path.insert(0, str(LISTS))
    from entries import Architecture

    for module in modules:
        for name, held in vars(import_module(module)).items():
            if isinstance(held, Architecture):
                yield Entry(module, name, held.family, held.title, held.loss is not None)


def attempt(entry: Entry, seconds: float, gigabytes: float) -> dict[str, Result]:
    """The import and the training step of an entry; where the output itself is trained on, the step is made of the
    graph that the import wrote.  What is written is read back by the same command.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec = f"{LISTS / entry.module}.py:{entry.name}"
        graph, step = Path(folder) / "graph.json", Path(folder) / "step.json"
        imported = _written([spec], graph, seconds, gigabytes)
        if entry.labelled:
            trained = _written([f"{spec}.training", "--train", "adam"], step, seconds, gigabytes)
        elif imported.good:
            trained = _written([str(graph), "--train", "adam"], step, seconds, gigabytes)
        else:
            trained = Result(False, 0.0, 0.0, 0, "does not import")
    return {"import": imported, "train": trained}


def _written(arguments: list[str], graph: Path, seconds: float, gigabytes: float) -> Result:
    """One command that writes a graph, and another that reads it."""
    made = _run(["import", *arguments, "-o", str(graph)], seconds, gigabytes)
    if not made.good:
        return made
    read = _run(["import", str(graph), "--json"], seconds, gigabytes)
    if not read.good:
        return Result(False, made.seconds, made.gigabytes, 0, f"read back: {read.reason}")
    return Result(True, made.seconds, made.gigabytes, read.operators)


def _run(arguments: list[str], seconds: float, gigabytes: float) -> Result:
    """The command line in a process of its own, forked from this one so that the libraries are loaded once."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        most, stopped = 0.0, ""
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            _command(arguments)
        while True:
            done, status, used = os.wait4(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
            most, taken = max(most, _resident(child)), _worked(child)
            if not stopped and (taken > seconds or most > gigabytes):
                stopped = f"more than {seconds:g} s" if taken > seconds else f"more than {gigabytes:g} GiB"
                os.kill(child, signal.SIGKILL)
        taken = round(used.ru_utime + used.ru_stime, 1)
        out.seek(0)
        err.seek(0)
        said, errors = out.read().decode(), err.read().decode(errors="replace")
    if stopped:
        return Result(False, taken, round(most, 2), 0, stopped)
    if status != 0:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        told = next((k for k, line in enumerate(lines) if line.startswith("error")), max(len(lines) - 1, 0))
        reason = re.sub(r"/\S*/site-packages/", "", " ".join(lines[told:]).replace(f"{LISTS}{os.sep}", ""))
        return Result(False, taken, round(most, 2), 0, reason[:1500] or f"exit status {status}")
    operators = json.loads(said)["operators"] if "--json" in arguments else 0
    return Result(True, taken, round(most, 2), operators)


def _command(arguments: list[str]) -> NoReturn:
    """What `python -m shardproof` does, and no return to the caller's process."""
    code = 70
    try:
        from shardproof.__main__ import run

        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001  # the parent reads it
        os.write(2, f"error: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def warm() -> None:
    """Load what every try needs."""
    import torch
    import torch._export
    from torch import nn

    import shardproof.__main__
    import shardproof.models.sources.torch.importer
    import shardproof.models.verbs.describe  # noqa: F401

    torch.set_num_threads(1)
    torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)).run_decompositions()


def _resident(pid: int) -> float:
    """GiB that a process holds."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), 0) / 2**20


def _worked(pid: int) -> float:
    """Processor seconds of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(path: Path) -> dict[str, dict[str, object]]:
    """Results so far, by entry and mode."""
    return json.loads(path.read_text()) if path.exists() else {}


def save(path: Path, results: dict[str, dict[str, object]]) -> None:
    """Write the results; an interrupted write leaves the old ones."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    beside.replace(path)


def _spread(chosen: list[Entry]) -> list[Entry]:
    """Some of every library early, so that an interrupted run says something about all."""
    places: list[tuple[float, str, Entry]] = []
    for module in MODULES:
        own = [e for e in chosen if e.module == module]
        places += [((k * 7 % len(own) + 0.5) / len(own), module, e) for k, e in enumerate(own)]
    return [e for *_, e in sorted(places, key=lambda p: p[:2])]


def main() -> None:
    """Try what is asked for and has no result yet; or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["*"], help="globs of MODULE:NAME or NAME")
    parser.add_argument("--families", nargs="*")
    parser.add_argument("--again", action="store_true", help="try also what has a result")
    parser.add_argument("--failed", action="store_true", help="try again what failed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        from architectures_page import page

        PAGE.write_text(page(list(entries()), load(given.results), load(given.results.with_name("three_steps.json"))))
        return
    chosen = [
        e
        for e in entries()
        if any(fnmatch(e.key, g) or fnmatch(e.name, g) for g in given.only)
        and (not given.families or e.family in given.families)
    ]
    warm()
    for e in _spread(chosen):
        known = load(given.results).get(e.key, {})
        failed = any(isinstance(t, dict) and not t["good"] for t in known.values())
        if known and not given.again and not (given.failed and failed):
            continue
        tries = attempt(e, given.seconds, given.gigabytes)
        save(given.results, {**load(given.results), e.key: {mode: asdict(t) for mode, t in tries.items()}})
        for mode, t in tries.items():
            said = "ok  " if t.good else "FAIL"
            print(
                f"{said} {mode:6} {e.key:40} {t.seconds:6.1f} s {t.gigabytes:5.2f} GiB {t.operators:6} {t.reason[:200]}"
            )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
