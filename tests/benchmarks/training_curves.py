"""Losses of a small GPT-2 and a small ResNet on MPI ranks beside one process: killed, resumed, resumed on fewer ranks and
under a plan of other degrees, joined in one picture.

    python tests/benchmarks/training_curves.py [--steps 200] [--killed 50] [--exact 20] [--model NAME ..] [--page FILE]

Each model is planned three times: `batch`, the batch split in every operator over 4 ranks; `own`, 4 ranks as the planner
likes it (heads, sequence and channels split); `two`, the same on 2 ranks.  Under `batch` the job is killed by SIGKILL
behind step `--killed` and resumed from the state behind it: under `batch`, `own` and `two`, to the end.

    float64    over `--exact` steps the loss of every plan, resumed halfway, is that of one process to 1e-9 of it
    float32    at every step the loss differs from that of one process by at most 10 times what one process has
               differed from itself by then, begun with other last digits (the larger of three draws), or by 1e-5 of it
    bits       killed and resumed under the same plan: bit for bit the losses of the run that nobody killed

    gpt        2 layers, width 64, 4 heads, 16 windows of 32 bytes of a text; Adam
    resnet     bottlenecks 1-1, 8 channels, 16 handwritten digits; momentum; batch norm over the batch of all ranks

The data is in `tests/data/training`.  Exit status 1 where a rule does not hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

HERE = Path(__file__).resolve().parent
FEEDS = HERE.parent / "training_feeds.py"
SLACK = 10.0
LEAST = 1e-5
EXACT = 1e-9
DRAWS = 3


@dataclass(frozen=True)
class Model:
    """What is trained; `first`: the operator whose batch is split under `batch`."""

    name: str
    optimizer: str
    feed: str
    first: str


MODELS = {
    "gpt": Model(
        "gpt-3-175b:depth=2,sequence=32,width=64,heads=4,vocabulary=128,dtype=float32",
        "adam:rate=1e-3",
        "letters",
        "embedding",
    ),
    "resnet": Model(
        "resnet101:size=32,blocks=1-1,stem=8,classes=10", "sgd:rate=0.02,momentum=0.9", "digits", "stem.conv"
    ),
}
PLANS = {"batch": 4, "own": 4, "two": 2}


class NotEqual(click.ClickException):
    """A rule does not hold."""


@dataclass(frozen=True)
class Curves:
    """Losses by step, of float32: `one` process; `whole`: 4 ranks that nobody killed; `killed`; (plan, losses behind)
    `resumed`; `own`: how far one process has differed from itself up to a step; `exact`: the largest difference in
    float64, of the loss, by plan.
    """

    one: list[float]
    whole: list[float]
    killed: list[float]
    resumed: dict[str, list[float]]
    own: list[float]
    exact: dict[str, float]

    def worst(self) -> dict[str, float]:
        """Per run the largest difference from one process over what is allowed."""
        runs = {"batch": (0, self.whole)} | {
            f"resumed under {p}": (len(self.killed), r) for p, r in self.resumed.items()
        }
        return {
            name: float(np.max([abs(x - self.one[n]) / self._allowed(n) for n, x in at(start, losses)]))
            for name, (start, losses) in runs.items()
        }

    def _allowed(self, n: int) -> float:
        return max(SLACK * self.own[n], LEAST * abs(self.one[n]))

    def check(self) -> None:
        """Raise `NotEqual` where a rule does not hold."""
        if self.killed + self.resumed["batch"] != self.whole:
            raise NotEqual("killed and resumed under the same plan is not the run that nobody killed")
        for name, ratio in self.worst().items():
            if not ratio <= 1:
                raise NotEqual(f"float32, {name}: {ratio:.3g} times what is allowed")
        for plan, apart in self.exact.items():
            if not apart <= EXACT:
                raise NotEqual(f"float64, {plan}: {apart:.3g} apart")


def at(start: int, losses: list[float]) -> Iterator[tuple[int, float]]:
    return ((start + k, x) for k, x in enumerate(losses))


def write_plans(model: Model, folder: Path) -> None:
    """A file per plan."""
    import shardproof

    for name, ranks in PLANS.items():
        split = {model.first: {"b": {"ranks": ranks}}} if name == "batch" else None
        found = shardproof.plan(model.name, f"localhost:{ranks}", batch=16, train=model.optimizer, strategy=split)
        found.save(folder / f"{name}.spz")


def ranks(folder: Path, model: Model, plan: str, steps: int, *more: str, kill_at: int | None = None) -> list[float]:
    """Losses of a run on MPI ranks, by its command line; `kill_at`: the step behind which it is killed."""
    line = ["run", str(folder / f"{plan}.spz"), "-n", str(PLANS[plan]), "--steps", str(steps), "--json", "--no-compare"]
    command = [sys.executable, "-m", "shardproof", *line, "--data", f"{FEEDS}:{model.feed}", *more]
    losses: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for said in job.stdout:
            row = json.loads(said)
            losses.append(row["loss"])
            if row["step"] == kill_at:
                job.kill()
                return losses
    if job.returncode or len(losses) != steps:
        raise click.ClickException(f"{' '.join(command)}: exit status {job.returncode}")
    return losses


def one_process(folder: Path, model: Model, dtype: str, steps: int, draw: int | None = None) -> list[float]:
    """Losses of one process; `draw`: begun with other last digits, of this draw."""
    from shardproof.backends.execution.reference import run_graph
    from shardproof.backends.execution.training_run import begin
    from shardproof.backends.lowering.numbered import at_step
    from shardproof.front_door import FrontDoor

    begun = begin(FrontDoor().open(folder / "two.spz"), "two.spz", numbers=dtype, data=f"{FEEDS}:{model.feed}")
    state, losses = dict(begun.state), []
    if draw is not None:
        rng = np.random.default_rng(draw)
        state = {
            n: np.nextafter(x, np.where(rng.integers(0, 2, x.shape) == 1, np.inf, -np.inf).astype(x.dtype))
            for n, x in sorted(state.items())
        }
    for number in range(1, steps + 1):
        found = run_graph(at_step(begun.graph, number), {**state, **begun.feed.at(number)})
        state |= {name: found[value] for name, value in begun.graph.state}
        losses.append(float(found[begun.loss]))
    return losses


def train(model: Model, folder: Path, steps: int, killed_at: int, exact: int) -> Curves:
    """All runs of a model."""
    write_plans(model, folder)
    one = one_process(folder, model, "float32", steps)
    others = [one_process(folder, model, "float32", steps, d) for d in range(DRAWS)]
    apart = np.abs(np.array(others) - np.array(one)).max(axis=0)
    single = ("--dtype", "float32")
    whole = ranks(folder, model, "batch", steps, *single)
    states = ("--save", str(folder / "state"), "--save-every", "10")
    killed = ranks(folder, model, "batch", steps, *single, *states, kill_at=killed_at)
    resume = ("--resume", str(folder / f"state/step-{killed_at:08}"))
    resumed = {plan: ranks(folder, model, plan, steps - killed_at, *resume) for plan in PLANS}
    expected, half = one_process(folder, model, "float64", exact), exact // 2
    found = {}
    for plan in PLANS:
        state = folder / f"exact-{plan}"
        first = ranks(folder, model, "batch", half, "--save", str(state))
        then = ranks(folder, model, plan, exact - half, "--resume", str(state))
        found[plan] = max(abs(x - y) / abs(y) for x, y in zip(first + then, expected, strict=True))
    return Curves(one, whole, killed, resumed, list(np.maximum.accumulate(apart)), found)


WIDTH, HEIGHT, LEFT, TOP = 520, 300, 56, 40
LINES = {
    "one process": ("#57606a", "5 4"),
    "4 ranks, batch split, killed": ("#2f6db5", ""),
    "resumed under batch": ("#3a9a5b", ""),
    "resumed under own": ("#d9822b", ""),
    "resumed under two": ("#b8474f", ""),
}


def picture(found: dict[str, Curves]) -> str:
    """Losses above, differences from one process below (logarithmic), a column per model."""
    wide, high = len(found) * (WIDTH + LEFT + 20), 2 * (HEIGHT + TOP) + 56
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
            f'font-family="sans-serif" font-size="12"><rect width="{wide}" height="{high}" fill="white"/>'
        )
    ]
    for column, (name, c) in enumerate(found.items()):
        left, start, end = LEFT + column * (WIDTH + LEFT + 20), len(c.killed), len(c.one)
        runs = {"one process": (0, c.one), "4 ranks, batch split, killed": (0, c.killed)}
        runs |= {f"resumed under {plan}": (start, losses) for plan, losses in c.resumed.items()}
        top = max(c.one)
        out.append(f'<text x="{left}" y="{TOP - 14}" font-weight="600">{name}: loss by step, float32</text>')
        out += panel(left, TOP, start, end, [(0.0, "0"), (top / 2, f"{top / 2:.2f}"), (top, f"{top:.2f}")], top)
        for label, (first, losses) in runs.items():
            out.append(line(left, TOP, label, end, [(n, x / top) for n, x in at(first, losses)]))
        below = 2 * TOP + HEIGHT
        words = "difference from one process; grey: of one process from itself, begun with other last digits"
        out.append(f'<text x="{left}" y="{below - 14}">{words}</text>')
        out += panel(left, below, start, end, [(k, f"1e{k}") for k in range(-9, 1, 3)], 0.0, -9.0)
        rows = {"one process": list(enumerate(c.own))}
        rows |= {k: [(n, abs(x - c.one[n])) for n, x in at(*run)] for k, run in runs.items() if k != "one process"}
        for label, points in rows.items():
            scaled = [(n, 1 + max(-9.0, np.log10(max(x, 1e-9))) / 9) for n, x in points]
            out.append(line(left, below, label, end, scaled))
        out.append(f'<text x="{left + WIDTH}" y="{below + HEIGHT + 16}" text-anchor="end">{end} steps</text>')
    for k, (label, (colour, dash)) in enumerate(LINES.items()):
        x, y = LEFT + 210 * k, high - 18
        out.append(f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out.append(f'<text x="{x + 30}" y="{y}">{label}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def panel(
    left: float, top: float, killed: int, end: int, ticks: list[tuple[float, str]], high: float, low: float = 0.0
) -> Iterator[str]:
    yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#57606a"/>'
    for value, words in ticks:
        y = top + HEIGHT * (1 - (value - low) / (high - low))
        yield f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#d0d7de" stroke-width="0.7"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'
    x = left + WIDTH * killed / end
    yield f'<path d="M{x:.1f} {top}v{HEIGHT}" stroke="#1b1f24" stroke-dasharray="2 3"/>'
    yield f'<text x="{x + 4:.1f}" y="{top + 14}">killed behind step {killed}</text>'


def line(left: float, top: float, label: str, end: int, points: list[tuple[int, float]]) -> str:
    colour, dash = LINES[label]
    path = " ".join(f"{left + WIDTH * (n + 1) / end:.1f},{top + HEIGHT * (1 - y):.1f}" for n, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.3" stroke-dasharray="{dash}"/>'


def row(name: str, c: Curves) -> str:
    worst = {k: f"{v:.2g}" for k, v in c.worst().items()}
    cells = [name, f"{c.one[0]:.3f}", f"{np.mean(c.one[-10:]):.3f}", *worst.values()]
    return "| " + " | ".join([*cells, *(f"{v:.1e}" for v in c.exact.values()), "yes"]) + " |"


HEAD = f"""| model | first loss | mean of the last ten | {
    " | ".join(f"float32, {w}" for w in ("batch", *(f"resumed under {p}" for p in PLANS)))
} | {" | ".join(f"float64, {p}" for p in PLANS)} | same bits |
|{"---|" * (8 + len(PLANS))}"""


@click.command()
@click.option("--steps", default=200, help="Steps in float32.")
@click.option("--killed", default=50, help="The step behind which the job is killed; a multiple of ten.")
@click.option("--exact", default=20, help="Steps in float64.")
@click.option("--model", "only", multiple=True, type=click.Choice(list(MODELS)), help="Leave the others out.")
@click.option("--page", type=click.Path(path_type=Path), help="Write the page, and its picture beside it.")
def main(steps: int, killed: int, exact: int, only: tuple[str, ...], page: Path | None) -> None:
    """Train all, hold them to the rules, print the table."""
    from shardproof.backends.execution.launch import mpi_available

    if not mpi_available():
        print("needs MPI: pip install 'shardproof[mpi]'")
        return
    found: dict[str, Curves] = {}
    lines = [HEAD]
    print(HEAD)
    for name in only or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = train(MODELS[name], Path(folder), steps, killed, exact)
        found[name].check()
        lines.append(row(name, found[name]))
        print(lines[-1], flush=True)
    if page is not None:
        _, _, words = (__doc__ or "").split("\n\n", 2)
        command = f"python tests/benchmarks/training_curves.py --steps {steps} --killed {killed} --exact {exact}"
        command += "".join(f" --model {m}" for m in only)
        notes = (
            "float32: the largest difference from one process over what the rule allows (1 is the limit); float64: the "
            "largest difference, of the loss."
        )
        svg = page.with_suffix(".svg")
        svg.write_text(picture(found))
        parts = ["# Training curves on ranks beside one process", f"`{command} --page FILE`", words.strip()]
        parts += ["\n".join(lines), notes, f"![losses by step, and differences]({svg.name})"]
        page.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
