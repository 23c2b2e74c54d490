"""What the Python way in to problems hands back: placements, a reduction's program, a solution, a schedule, each with
the certificate that the checker accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardproof.models.problem.claims import Verdict
from shardproof.models.text import InputError, parse_bytes

if TYPE_CHECKING:
    from shardproof.formal.equality.rounding import Bound
    from shardproof.models.collective_programs.parallelism import Matrix
    from shardproof.proofs.collective_programs.chosen import Chosen
    from shardproof.proofs.export.device_mesh import Nested
    from shardproof.proofs.publishing.publisher import Published


@dataclass(frozen=True, eq=False)
class Answer:
    """What was found and what the checker says of it.  `engine`: what another engine was asked and answered, as
    `--json` of the command line has it; `data`: the bytes of the certificate.
    """

    published: Published
    data: bytes
    engine: object

    @property
    def verdict(self) -> Verdict:
        """The checker's word."""
        return self.published.verdict

    @property
    def identity(self) -> str:
        """Hash of the certificate's content."""
        return self.published.identity

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the `.spz` file.  Raises `OutputError` where something else stands, unless `force`."""
        from shardproof.models.files.output import check_target, write_file

        write_file(check_target(Path(path), force=force, replaces_results=True), self.data)


@dataclass(frozen=True)
class Equality:
    """Whether a program on ranks computes what one device computes.

    `answer`: `equal` (proved), `different` (numbers show it) or `undecided`.  `output`, `rank`, `line`, `numbers`
    (there, on one device): where it breaks first.  `inputs`, `outputs`: which parts ranks have, in words.
    `data`: the bytes of the certificate, empty where programs are different.  `rounding`: of equal ones, how far
    rounding alone moves them apart on the inputs given; None where that was not computed.
    """

    answer: Literal["equal", "different", "undecided"]
    reason: str
    output: str
    rank: int | None
    line: str
    numbers: tuple[float, float] | None
    inputs: Sequence[Mapping[str, object]]
    outputs: Sequence[Mapping[str, object]]
    assumptions: tuple[str, ...]
    data: bytes
    rounding: Bound | None = None

    def __bool__(self) -> bool:
        """Whether it is proved."""
        return self.answer == "equal"

    def __str__(self) -> str:
        """One sentence."""
        where = f"{self.output} of rank {self.rank} " if self.output else ""
        there = f": {self.numbers[0]!r}, on one device {self.numbers[1]!r}" if self.numbers is not None else ""
        at = f", at {self.line}" if self.line else ""
        return f"{self.answer}{': ' if where or self.reason else ''}{where}{self.reason}{there}{at}"

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the `.spz` file.  Raises `InputError` where there is none, `OutputError` where another file stands."""
        from shardproof.models.files.output import check_target, write_file

        if not self.data:
            raise InputError(f"programs that are {self.answer} have no certificate")
        write_file(check_target(Path(path), force=force, replaces_results=True), self.data)


@dataclass(frozen=True, eq=False)
class Placements(Answer):
    """All placements of axes over a hierarchy (rows axes, columns levels); for reductions `best`, the number of the
    best one, seconds per step of each (`costs_s`), and the `programs` on the best one.
    """

    matrices: tuple[Matrix, ...]
    best: int | None = None
    costs_s: tuple[Fraction, ...] = ()
    programs: tuple[Chosen, ...] = ()

    @property
    def matrix(self) -> Matrix:
        """The best placement.  Raises `InputError` where several are possible and no reduction was given."""
        if self.best is not None:
            return self.matrices[self.best]
        if len(self.matrices) == 1:
            return self.matrices[0]
        raise InputError("which placement is best depends on what is reduced: give reductions")

    @property
    def cost_s(self) -> Fraction | None:
        """Seconds of the reductions per step on the best placement."""
        return None if self.best is None else self.costs_s[self.best]

    @property
    def lower_bound_s(self) -> Fraction | None:
        """What no placement goes below, as the checker proved it."""
        bound = self.published.lower_bound
        return None if bound is None or not self.programs else Fraction(bound, self.programs[0].scale)

    @property
    def devices(self) -> Nested:
        """Devices of the best placement by their places along the axes: nested lists, shape (axis 0, axis 1, ..)."""
        from shardproof.proofs.export.device_mesh import device_order

        return device_order(self.matrix)

    def mesh(self, to: str) -> str:
        """Text of a Python file with the best placement's devices in order: "devicemesh" of torch, or "jax"."""
        from shardproof.proofs.export.device_mesh import TARGETS, mesh_text

        for target in TARGETS:
            if to == target:
                return mesh_text(self.matrix, target)
        raise InputError(f"there is no mesh of {to!r}; choose one of {', '.join(TARGETS)}")


@dataclass(frozen=True, eq=False)
class Reduction(Answer):
    """The cheapest program of a reduction.  `count`: programs that there are; `words`: this one in short, with its
    `steps`; `matrix`: its placement (None: nodes of different sizes).  Seconds: of the program, of one all-reduce.
    """

    count: int
    chosen: Chosen
    matrix: Matrix | None
    all_reduce_s: Fraction | None

    @property
    def words(self) -> str:
        """The program, such as "RS.L AR.P AG.L"."""
        return self.chosen.words

    @property
    def steps(self) -> tuple[str, ...]:
        """Its instructions."""
        return tuple(map(str, self.chosen.program))

    @property
    def cost_s(self) -> Fraction:
        """Seconds of the program."""
        return Fraction(self.chosen.cost or 0, self.chosen.scale)

    @property
    def lower_bound_s(self) -> Fraction | None:
        """What no program goes below, as the checker proved it."""
        bound = self.published.lower_bound
        return None if bound is None else Fraction(bound, self.chosen.scale)

    def run(self, seed: int = 0, payload: int | str = "64kiB", timeout_s: float = 120.0) -> ProgramRun:
        """Execute the program on virtual ranks in this process, on drawn integers, and compare with the sum."""
        from shardproof.backends.execution.collective_programs import run_virtual

        system = self.chosen.request.system()
        width = max(1, bytes_of(payload) // (8 * system.chunks))
        (found,) = run_virtual([self.chosen.program], system, width, seed, timeout_s)
        return ProgramRun(found.correct, found.wrong)

    def export(self, to: str) -> str:
        """Text of a Python file that runs the program and needs nothing of ours: "torch" or "jax".  Raises
        `InputError` for a step that the target cannot say.
        """
        from shardproof.backends.export.collective_programs import program_text
        from shardproof.backends.verbs.export import PROGRAMS

        if to not in PROGRAMS:
            raise InputError(f"there is no export of programs to {to!r}; choose one of {', '.join(PROGRAMS)}")
        return program_text((self.chosen,), self.identity, to)


@dataclass(frozen=True)
class ProgramRun:
    """Whether every device ended with its sum, exactly; `wrong`: the devices that did not."""

    equal: bool
    wrong: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Solution(Answer):
    """A selection problem's best solution known.  `status`: "optimal", "feasible", "infeasible" or "unknown", the
    checker's word; `choices`: one per vertex; `cost`, `lower_bound`: in units of 1/`scale`.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    choices: tuple[int, ...] | None
    scale: int

    @property
    def cost(self) -> int | None:
        """Of the choices."""
        return None if self.choices is None else self.published.cost

    @property
    def lower_bound(self) -> int | None:
        """What no solution goes below, as the checker proved it."""
        return None if self.status == "infeasible" else self.published.lower_bound


@dataclass(frozen=True, eq=False)
class Schedule(Answer):
    """A schedule: `starts` of the tasks `names`; `makespan` and `lower_bound` in the times of a pipeline, or seconds of
    a graph; `better`: the makespan of a shorter one than the published kind that was asked about.  `status`: "optimal",
    "feasible" or "refuted".
    """

    status: Literal["optimal", "feasible", "refuted"]
    starts: tuple[Fraction, ...]
    names: tuple[str, ...]
    makespan: Fraction
    lower_bound: Fraction | None
    better: Fraction | None


def bytes_of(value: int | str) -> int:
    """Bytes per device, as an integer or a text.  Raises `InputError`.

    >>> bytes_of("1kiB"), bytes_of(3)
    (1024, 3)
    """
    amount = value if isinstance(value, int) else parse_bytes(value)
    if amount < 1:
        raise InputError(f"{value} bytes: at least 1 byte per device")
    return amount
