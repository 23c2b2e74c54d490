"""The contract of the front door: nothing appears under its final name before the checker has accepted it, but where a
time limit ends the check (then the file is written, and said to be unchecked), and nothing is done with a file that the
checker refutes.

Only the front door sees both `formal` and `verify`, so it implements this protocol and hands it to whoever makes
results or reads them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ...models.text import InputError, seconds_text

if TYPE_CHECKING:  # signatures only: a verb that publishes placements does not load joint plans
    from ...models.cost.selection import Planning
    from ...models.cost.sized import SizedJob, SizeEnd
    from ...models.egraphs.egraph import EGraph
    from ...models.layout.targets.degrees import Flags
    from ...models.problem.claims import Verdict
    from ...models.problem.selection_problem import SelectionProblem
    from ...models.program.graph import Graph
    from ...models.schedules.experts import ExpertPlaces
    from ..collective_programs.certificate import ReductionCertificate
    from ..joint.books import Book
    from ..overlap.certificate import OverlapCertificate
    from ..pipelines.certificate import PipelineCertificate
    from ..plan.bundle import Plan
    from ..plan.error_bounds import ErrorBounds
    from ..portfolio.sizes import Pick
    from ..rewrites.library import Library
    from ..views.certificate import SubmeshCertificate

    AnyPlan = Plan | PipelineCertificate | OverlapCertificate | SubmeshCertificate


@dataclass(frozen=True)
class Among:
    """One plan of several.  `parts` in words, with the program's name where it is another one than the job's; seconds
    of its `step`, and what no plan that its claim is about goes below; whether it is the one that is taken.
    """

    parts: str
    step: Fraction | None
    bound: Fraction
    taken: bool

    @property
    def words(self) -> str:
        """For a line of text.

        >>> print(Among("2 stages", Fraction(3, 1000), Fraction(1, 500), True).words)
        2 stages: 3 ms (at least 2 ms), taken
        """
        step = "nothing that fits" if self.step is None else seconds_text(self.step.numerator, self.step.denominator)
        bound = f" (at least {seconds_text(self.bound.numerator, self.bound.denominator)})" if self.bound else ""
        return f"{self.parts}: {step}{bound}{', taken' if self.taken else ''}"

    def to_json(self) -> dict[str, object]:
        """Plain data, times in seconds."""
        step = None if self.step is None else float(self.step)
        return {"parts": self.parts, "step_s": step, "lower_bound_s": float(self.bound), "taken": self.taken}


NOTHING_FITS: Final = "it is about a memory limit that no plan was found to fit; 'shardproof explain' shows the steps"
"""Of a file without choices."""


@dataclass(frozen=True)
class Published:
    """What the checker said of the bytes.  `path` is None if nothing was written; `identity` names the content.
    `assumptions`: those of the claim.  `large`: checking it takes what `check --large` allows.  `checked`: False where
    the time limit was over before the verdict; `cost` is then the search's own word and nothing else is said.
    `among`: of a file with several plans, each.
    """

    verdict: Verdict
    kind: str
    cost: int | None
    lower_bound: int | None
    reason: str
    identity: str
    path: Path | None
    size: int
    assumptions: tuple[str, ...] = ()
    large: bool = False
    checked: bool = True
    among: tuple[Among, ...] = ()

    @property
    def advice(self) -> tuple[str, ...]:
        """How to check the file, where that is not what anybody would try."""
        return self.advice_lines()

    def advice_lines(self, *beside: Path) -> tuple[str, ...]:
        """`advice`, for a certificate that is checked together with the file of its problem.

        >>> from pathlib import Path
        >>> from shardproof.models.problem.claims import Verdict
        >>> late = Published(Verdict.UNDECIDED, "Unchecked", 7, None, "", "", Path("a.spz"), 1, checked=False)
        >>> late.advice_lines(Path("a.json"))
        ('written, not checked here: run shardproof check --large a.spz a.json',)
        """
        command = self.command(*beside)
        if command is None or (self.checked and not self.large):
            return ()
        if not self.checked:
            return (f"written, not checked here: run {command}",)
        return (f"check it with: {command} (it takes more than a minute or 2 GiB)",)

    def command(self, *beside: Path) -> str | None:
        """What checks the file; None if nothing was written."""
        if self.path is None:
            return None
        large = "--large " if self.large or not self.checked else ""
        return f"shardproof check {large}{' '.join(shlex.quote(str(f)) for f in (self.path, *beside))}"

    def to_json(self, *beside: Path) -> dict[str, object]:
        """Whether the checker has seen it, and what checks what was written."""
        command = self.command(*beside)
        return {"checked": self.checked} | ({} if command is None else {"check_with": command})


@dataclass(frozen=True, eq=False)
class Opened:
    """A plan of whatever kind that somebody wrote, and what the checker said of it.  `scale`: units of its costs in a
    second; `data`: the bytes that were checked; `planning`: of a plan of placements alone, its problem as the checker
    built it; `job`: of the best of several plans, the program that all of them are for.
    """

    held: AnyPlan
    published: Published
    scale: int
    data: bytes
    planning: Planning | None = None
    job: Graph | None = None

    @property
    def user_graph(self) -> Graph:
        """The program that was asked about, which the plan's is equal to."""
        from .placed import asked_of

        own = self.held.graph if self.job is not None else asked_of(self.held)
        job = own if self.job is None else self.job
        return job if (job.outputs, job.state) == (own.outputs, own.state) else own

    @property
    def identity(self) -> str:
        """Hash of its content."""
        return self.published.identity

    @property
    def place(self) -> str:
        """What errors name: the file, or the graph of a plan that was never written."""
        return self.held.graph.name if self.published.path is None else str(self.published.path)

    @property
    def seconds(self) -> tuple[Fraction, Fraction]:
        """Of a step: what it costs, and what no plan that the claim is about goes below (0: nothing was proved).
        Raises `InputError` for a file that says that nothing fits.
        """
        cost, bound = self.with_choices().published.cost, self.published.lower_bound
        return Fraction(cost or 0, self.scale), Fraction(max(0, bound or 0), self.scale)

    def with_choices(self) -> Opened:
        """Itself.  Raises `InputError` for a file that says that nothing fits."""
        if self.published.cost is None:
            raise InputError(f"{self.place} has no choices, nothing to run or to export: {NOTHING_FITS}")
        return self


@dataclass(frozen=True)
class Restricted:
    """A plan within what `vocabulary` says, checked, beside the plan that was free to choose.  Seconds of a step: what
    each costs, and what the checker proved that no plan of its space goes below.
    """

    vocabulary: str
    plan: Plan
    identity: str
    free: tuple[Fraction, Fraction]
    restricted: tuple[Fraction, Fraction]

    @property
    def price(self) -> tuple[Fraction, Fraction]:
        """Least and most that the restriction costs, as a share of the free optimum.

        >>> from fractions import Fraction as F
        >>> Restricted("dtensor", None, "", (F(10), F(10)), (F(11), F(11))).price
        (Fraction(1, 10), Fraction(1, 10))
        """
        (cost, bound), (own, own_bound) = self.free, self.restricted
        least = max(Fraction(0), own_bound / cost - 1) if cost else Fraction(0)
        return least, own / bound - 1 if bound else least

    @property
    def words(self) -> str:
        """The price in words.

        >>> from fractions import Fraction as F
        >>> Restricted("dtensor", None, "", (F(10), F(9)), (F(11), F(11))).words
        'what dtensor costs you: between 10.00 % and 22.22 %, proved'
        """
        least, most = (f"{float(100 * x):.2f} %" for x in self.price)
        return f"what {self.vocabulary} costs you: {least if least == most else f'between {least} and {most}'}, proved"


@dataclass(frozen=True)
class Nearest:
    """The settings of `framework` that come nearest to a checked plan.  Seconds of a step: of the plan and the bound of
    its claim; of the settings, completed in the framework's favour where they leave something open, and what no
    settings that were considered go below (both checked).  `tried`: settings with a certificate of their own;
    `excluded`: others, with the reason.
    """

    framework: str
    flags: Flags
    plan: Plan
    identity: str
    free: tuple[Fraction, Fraction]
    settings: tuple[Fraction, Fraction]
    tried: int
    excluded: tuple[tuple[str, str], ...] = ()

    @property
    def distance(self) -> tuple[Fraction, Fraction]:
        """Least and most that the settings cost above the optimum, as a share of it.

        >>> from fractions import Fraction as F
        >>> Nearest("megatron", None, None, "", (F(10), F(10)), (F(11), F(11)), 3).distance
        (Fraction(1, 10), Fraction(1, 10))
        """
        (cost, bound), (own, own_bound) = self.free, self.settings
        least = max(Fraction(0), own_bound / cost - 1) if cost else Fraction(0)
        return least, own / bound - 1 if bound else least

    @property
    def words(self) -> str:
        """The distance in words."""
        least, most = (f"{float(100 * x):.2f} %" for x in self.distance)
        said = least if least == most else f"between {least} and {most}"
        return (
            f"the nearest settings of {self.framework} cost {said} more than the optimum, proved over {self.tried} "
            "settings"
        )


ENCODINGS: Final = ("json", "lp", "mps", "opb", "smt2", "wcsp")
"""Files that a selection problem is written to for other solvers; json is our own, which `solve` reads."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A problem as a file for another solver.  A solution costs what that solver says plus `shift`, in units of
    1/2**`fine_bits` of the problem's.
    """

    problem: SelectionProblem
    text: str
    shift: int = 0


Notify = Callable[[int, int], None]


class Publisher(Protocol):
    """Encodes, decodes again, checks, and only then renames into place.  Raises `SelfCheckFailed` on a refutation."""

    def within(self, late: Callable[[], bool], keep: bool = True) -> Publisher:
        """One whose checks end when `late` says so: what was made is written without a verdict then (`unchecked`), or
        not at all where nobody could check it later (`keep` False).
        """
        ...

    def publish(
        self,
        path: Path | None,
        data: bytes,
        about: SelectionProblem | EGraph | None = None,
        notify: Notify | None = None,
    ) -> Published:
        """What the checker says of the bytes of a container; `path` appears only if nothing is refuted.  `about`: the
        problem of a certificate that stands alone; `notify(done, total)` is told how far the check is.
        """
        ...

    def open(self, path: Path) -> Opened:
        """Read and check a plan of whatever kind: `RefutedPlan` if any of its claims is refuted, `ContainerError` for
        what is no plan.
        """
        ...

    def open_sized(self, path: Path, pick: Pick) -> Opened:
        """The plan for one size of a file of plans for a range of sizes; `pick` says which."""
        ...

    def gap_between(
        self, job: SizedJob, step: int, ends: tuple[SizeEnd, SizeEnd], taken: SizeEnd, wanted: Fraction
    ) -> Fraction:
        """How far the placements of a size are from the best at most, as a share, at all sizes between two; `wanted`:
        what is enough.
        """
        ...

    def programs(self, path: Path) -> tuple[ReductionCertificate, Published]:
        """Read and check reduction programs, as `open` does plans."""
        ...

    def bars(self, planning: Planning, x: tuple[int, ...], bars: ErrorBounds, bound: int | None) -> Published:
        """What the checker says of the machines within error bounds; `bound`: proved on the machine itself."""
        ...

    def rules(self, path: Path | None, library: Library) -> dict[str, str]:
        """Publish judgements of rules: rule -> what the checker says (proved, refuted, vacuous, undecided, derived)."""
        ...

    def book(self, where: Path) -> Book:
        """A library of rules for joint plans, checked.  Raises `RefutedLibrary`, and `ContainerError` for what is no
        library.
        """
        ...

    def replan_within(
        self, found: Opened, vocabulary: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Restricted:
        """Plan again within what a framework says, and have the new plan checked; ValueError if nothing is found.
        No limit of time or work: 300 s.
        """
        ...

    def export_text(self, path: Path, target: str) -> str:
        """The text of the file that `export` writes of a checked plan.  Raises `InputError` for what the target does
        not do.
        """
        ...

    def encode(self, path: Path, to: str) -> Encoded:
        """The selection problem of a file, or of a plan, for another solver (`ENCODINGS`).  Raises `InputError` for
        plans whose proof rests on several problems, and for problems that the file cannot say.
        """
        ...

    def nearest(
        self, found: Opened, framework: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Nearest:
        """The settings of a framework nearest to a plan, with all certificates checked; ValueError if none fits."""
        ...

    def expert_places(self, found: ExpertPlaces) -> tuple[Fraction, Fraction]:
        """What the checker says of experts on ranks: their makespan, and what no placement goes below."""
        ...


class RefutedPlan(ValueError):
    """A plan file whose claims the checker refutes; exit 10.  It is not executed, explained or exported."""


class RefutedLibrary(RefutedPlan):
    """A library with a rule whose proof does not hold; exit 10.  No plan uses any of its rules."""


class OutOfTime(Exception):
    """The time for our own check is over; raised where it looks, so that there is no verdict."""


class SelfCheckFailed(RuntimeError):
    """Our own checker refuted our own result; the last checked file is untouched.  A defect: please report it."""

    @classmethod
    def of(cls, what: str, reason: str) -> SelfCheckFailed:
        """The error about one claim, or rule."""
        return cls(
            f"our own checker refuted our own result ({what}: {reason}); nothing was written. Please report this."
        )
