"""A checkpoint is the state behind step n as files, one per rank: written, and read back for any plan of the model.

    DIR/step-00000012/manifest.json     model, plan, numbers; per rank every block: tensor, box, file, hash; of files
                                        bytes and hash; its own hash
    DIR/step-00000012/rank-00003.npz    blocks that rank 3 writes: those that no rank before it holds bit for bit

Ranks write into a folder of another name, which gets its own when all of it is on the disk: what ends in the middle
of that leaves the checkpoint before it as it was.  Replicas that differ in their last bits are kept apart, so that the
same plan goes on bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...models.communication.transfers import Box
from ...models.files.json_text import JsonError, parse_json
from ...models.files.output import OutputError, open_output
from ...models.program.graph import Graph
from ...models.text import InputError, bytes_text
from ...proofs.container.canonical import canonical
from ..kernels import Array
from .held import Blocks, lasting

_FORMAT: Final = "shardproof-checkpoint/1"
_MANIFEST: Final = "manifest.json"
_STEP: Final = re.compile(r"step-([0-9]{8,})")
_UNFINISHED: Final = ".unfinished-"
_REPLACED: Final = ".replaced-"

Row = tuple[str, Box, str]
"""A block of a rank: tensor, where it lies, hash of its bytes."""


@dataclass(frozen=True)
class Origin:
    """What a state belongs to.  `graph`, `model`: hash and name of the program; `plan`: the plan's identity; `numbers`:
    element types (`float64`, `float32`, `own`); `drawn`: whether data came from the seed.
    """

    graph: str
    model: str
    plan: str
    numbers: str
    seed: int
    drawn: bool


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state that was read back.  `whole`: tensors, in digit shape, as they are kept; `ranks`: every rank's blocks."""

    step: int
    origin: Origin
    whole: dict[str, Array]
    ranks: tuple[Blocks, ...]
    path: Path


def rows_of(blocks: Blocks) -> list[Row]:
    """What a rank holds, with hashes."""
    return [(name, where, _hash(block)) for name in sorted(blocks) for where, block in blocks[name]]


def check_folder(folder: Path, done: int, force: bool, size: int = 0) -> None:
    """Make the folder of checkpoints for a run behind step `done`.  States of later steps would be taken for its own:
    they are refused, or removed with `force`.  `size`: bytes of a state.  Raises `OutputError`, also where nothing can
    be written there, or not so much.
    """
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / f".seen-{secrets.token_hex(8)}"
        probe.touch()
        probe.unlink()
        states = [(m, p) for p in folder.iterdir() if (m := _STEP.fullmatch(p.name)) and (p / _MANIFEST).exists()]
        later = sorted((int(m[1]), p) for m, p in states if int(m[1]) > done)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be a folder of checkpoints: {error.strerror or error}") from None
    if later and not force:
        raise OutputError(
            f"{folder}: holds a state of step {later[-1][0]} already, and this run begins behind step {done}; choose "
            f"another folder, go on from it with --resume, or remove it with --force"
        )
    for _, path in later:
        shutil.rmtree(path, ignore_errors=True)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutputError(
            f"{folder}: a state takes {bytes_text(size)}, and {bytes_text(free)} are free there; free some, or choose "
            f"another folder"
        )


def begin(folder: Path, step: int) -> Path:
    """An empty folder for the files of a state.  What earlier runs left unfinished is removed."""
    remove_unfinished(folder)
    for left in folder.glob(f"{_REPLACED}*"):
        number = _STEP.search(left.name)
        if number is not None and not (folder / number[0]).exists():
            os.replace(left, folder / number[0])  # it ended between two names
        else:
            shutil.rmtree(left, ignore_errors=True)
    here = folder / f"{_UNFINISHED}{_name(step)}"
    here.mkdir()
    return here


def write_rank(here: Path, rank: int, blocks: Blocks, wanted: Sequence[int]) -> tuple[str, int, str] | None:
    """Write this rank's blocks number `wanted` (of `rows_of`): (file, bytes, hash); None where it writes none."""
    if not wanted:
        return None
    listed = [block for name in sorted(blocks) for _, block in blocks[name]]
    path = here / f"rank-{rank:05}.npz"
    with open_output(path) as file, zipfile.ZipFile(file, "w") as archive:
        for n in wanted:
            with archive.open(zipfile.ZipInfo(f"{n}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(listed[n]), allow_pickle=False)
    return path.name, path.stat().st_size, _file_hash(path)


def writers(rows: Sequence[Sequence[Row]]) -> list[list[int]]:
    """Per rank the numbers of the blocks that it writes: no block twice.

    >>> b = ((0, 2),)
    >>> writers([[("w", b, "1")], [("w", b, "1")], [("w", b, "2")]])
    [[0], [], [0]]
    """
    seen: set[Row] = set()
    out: list[list[int]] = []
    for each in rows:
        out.append([n for n, row in enumerate(each) if row not in seen])
        seen |= set(each)
    return out


def finish(
    here: Path,
    folder: Path,
    step: int,
    origin: Origin,
    rows: Sequence[Sequence[Row]],
    files: Sequence[tuple[str, int, str]],
) -> Path:
    """Write the manifest, and give the folder its name."""
    places: dict[Row, list[object]] = {}
    for rank, (each, wanted) in enumerate(zip(rows, writers(rows), strict=True)):
        places |= {each[n]: [f"rank-{rank:05}.npz", f"{n}.npy"] for n in wanted}
    data: dict[str, object] = {
        "format": _FORMAT,
        "step": step,
        "graph": origin.graph,
        "model": origin.model,
        "plan": origin.plan,
        "numbers": origin.numbers,
        "seed": str(origin.seed),
        "drawn": origin.drawn,
        "files": {name: [size, sha] for name, size, sha in files},
        "ranks": [[[name, [list(i) for i in box], *places[name, box, sha], sha] for name, box, sha in r] for r in rows],
    }
    data["sha256"] = hashlib.sha256(canonical(data)).hexdigest()
    with open_output(here / _MANIFEST) as file:
        file.write(canonical(data))
    _sync(here)
    target, aside = folder / _name(step), folder / f"{_REPLACED}{_name(step)}"
    if target.exists():
        os.replace(target, aside)
    os.replace(here, target)
    shutil.rmtree(aside, ignore_errors=True)
    _sync(folder)
    return target


def save(folder: Path, step: int, origin: Origin, ranks: Sequence[Blocks]) -> Path:
    """Write the state of all ranks from one process.  Raises `OutputError`."""
    with ExitStack() as undone, saving(folder, step):
        undone.callback(remove_unfinished, folder)
        here = begin(folder, step)
        rows = [rows_of(blocks) for blocks in ranks]
        found = [write_rank(here, r, blocks, w) for r, (blocks, w) in enumerate(zip(ranks, writers(rows), strict=True))]
        return finish(here, folder, step, origin, rows, [f for f in found if f is not None])


@contextmanager
def saving(folder: Path, step: int) -> Iterator[None]:
    """Write files of a state in here.  Raises `OutputError` naming it for what the system says."""
    try:
        yield
    except (OSError, OutputError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutputError(f"{folder}: the state of step {step} cannot be written: {why}") from None


def remove_unfinished(folder: Path) -> None:
    """Remove what was left in the middle of a state, once nobody writes it."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def load(folder: Path, graph: Graph) -> Checkpoint:
    """The last state in a folder, or the one that the folder is.  `graph`: the model that is to go on.  Raises
    `InputError` naming the file that is missing, altered or of another model, and the state before it.
    """
    path, *before = _states(folder)
    try:
        return _loaded(path, graph)
    except (KeyError, TypeError, ValueError, IndexError, EOFError, OSError, zipfile.BadZipFile) as error:
        why = str(error) if isinstance(error, InputError) else _unread(path, error)
        raise InputError(f"{why}; the state before it: --resume {before[0]}" if before else why) from None


def _loaded(path: Path, graph: Graph) -> Checkpoint:
    manifest = path / _MANIFEST
    data = _manifest(manifest)
    if data["graph"] != graph.sha256():
        raise InputError(
            f"{manifest}: is a state of another model, {data['model']!r} (graph {data['graph'][:16]}); the plan is of "
            f"{graph.name!r} (graph {graph.sha256()[:16]}): plan the same model, batch and optimizer"
        )
    for name, (size, sha) in data["files"].items():
        file = path / name
        if not file.is_file():
            raise InputError(f"{file}: is missing; {manifest} lists it: the state cannot be resumed")
        if file.stat().st_size != size or _file_hash(file) != sha:
            raise InputError(f"{file}: is not the file that {manifest} lists (truncated or altered)")
    kept: dict[tuple[str, str], Array] = {}
    for name in data["files"]:
        with np.load(path / name, allow_pickle=False) as archive:
            kept |= {(name, f"{member}.npy"): archive[member] for member in archive.files}
    whole: dict[str, Array] = {}
    filled: dict[str, Array] = {}  # where a rank has given it
    ranks: list[Blocks] = []
    for rank in data["ranks"]:
        blocks: dict[str, list[tuple[Box, Array]]] = {}
        for name, intervals, file, member, _ in rank:
            if not graph.holds(name) or (file, member) not in kept:
                raise InputError(f"{manifest}: lists a block of {name!r} that is in no file")
            box, block = tuple((int(lo), int(hi)) for lo, hi in intervals), kept[file, member]
            shape = graph.tensor(name).shape
            inside = all(0 <= lo <= hi <= n for (lo, hi), n in zip(box, shape, strict=True))
            if not inside or block.shape != tuple(hi - lo for lo, hi in box):
                raise InputError(f"{manifest}: the block of {name!r} at {box} has shape {block.shape}")
            blocks.setdefault(name, []).append((box, block))
            where = tuple(slice(lo, hi) for lo, hi in box)
            if name not in whole:
                whole[name], filled[name] = np.zeros(shape, block.dtype), np.zeros(shape, bool)
            whole[name][where] = np.where(filled[name][where], whole[name][where], block)
            filled[name][where] = True
        ranks.append(blocks)
    lacking = [n for n in lasting(graph) if n not in whole or not filled[n].all()]
    if lacking:
        raise InputError(
            f"{manifest}: lacks {len(lacking)} of the model's parameters, or parts of them: {lacking[0]!r}"
        )
    origin = Origin(data["graph"], data["model"], data["plan"], data["numbers"], int(data["seed"]), bool(data["drawn"]))
    return Checkpoint(int(data["step"]), origin, whole, tuple(ranks), path)


def with_fixed(ranks: Sequence[Blocks], graph: Graph, base: Callable[[str], Array]) -> list[Blocks]:
    """What ranks hold, and on the first one what no step renews, whole.  `base`: gives that."""
    renewed = {name for name, _ in graph.state}
    fixed = {n: [(tuple((0, x) for x in graph.tensor(n).shape), base(n))] for n in lasting(graph) if n not in renewed}
    return [{**blocks, **(fixed if rank == 0 else {})} for rank, blocks in enumerate(ranks)]


def _unread(path: Path, error: Exception) -> str:
    return f"{path / _MANIFEST}: is no manifest of a state that can be read: {str(error)[:120]}"


def _states(folder: Path) -> list[Path]:
    """The last one first."""
    if (folder / _MANIFEST).is_file():
        return [folder]
    try:
        found = [(int(m[1]), p) for p in folder.iterdir() if (m := _STEP.fullmatch(p.name))]
        found += [
            (int(m[1]), p)
            for p in folder.glob(f"{_REPLACED}*")
            if (m := _STEP.search(p.name)) and not (folder / m[0]).exists()
        ]
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be read: {error.strerror or error}; --resume takes what --save wrote"
        ) from None
    if not found:
        raise InputError(f"{folder}: holds no state; --resume takes a folder that run --save wrote")
    return [path for _, path in sorted(found, reverse=True)]


def _manifest(path: Path) -> Any:
    try:
        data: Any = parse_json(path.read_bytes(), floats=False)
        stated = data.pop("sha256")
        if data["format"] != _FORMAT:
            raise InputError(f"{path}: has format {str(data['format'])[:60]!r}; this version reads {_FORMAT!r}")
        if hashlib.sha256(canonical(data)).hexdigest() != stated:
            raise InputError(f"{path}: was altered: its contents do not have the hash that it states")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (JsonError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is no manifest of a state (truncated or altered): {str(error)[:120]}") from None
    return data


def _name(step: int) -> str:
    return f"step-{step:08}"


def _hash(block: Array) -> str:
    head = f"{block.dtype.str} {block.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(block).tobytes()).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    """The names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_goes_on(found: Checkpoint, numbers: str | None, fed_again: bool) -> None:
    """Raise `InputError` where a state cannot go on as asked.  `numbers`: element types that were asked for;
    `fed_again`: whether data was given.
    """
    origin = found.origin
    if numbers is not None and numbers != origin.numbers:
        raise InputError(f"{found.path}: is a state in {origin.numbers}, --dtype asks for {numbers}; leave out --dtype")
    if not origin.drawn and not fed_again:
        raise InputError(f"{found.path}: its steps had data of yours; give it again with --data")
