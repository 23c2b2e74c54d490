"""The page of published steps: figures of every family, the worst rows, and what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .order import lines_of
from .predicting import Told

WORST = 6
ABOUT = """One layer of each kind is priced operator by operator on the machine file of the package, and the step composed
(`formal/plans/pipelines/composed.py`).  No constant is fitted on a row of the judged folder.  What a step has and a single kernel
has not comes from other measurements: the clock under load (`STEADY`, long products of the gemm table), PyTorch's norms (`EAGER`,
our own GPUs), FlashAttention beside cuDNN's (`FLASH`, ours too) and in Triton (`TRITON`, its author's paper), products whose rows
are no whole vectors (`UNALIGNED`, ours), float8 and Blackwell beside the H100 (`FLOAT8`, `ATTENTION`, `STEADY`, the machine files:
products measured by stas00/ml-engineering), forms borrowed from the H100 where a device has no rows, maps that stream
faster than products load (`STREAM`, ours).  That forward and backward take the host equally long is ours too (`tests/data/measured/host`).
Experts have a product each until the release whose notes say that all are one kernel (`experts_of` in `configurations/tables.py`).
What software runs beside the operators (dropout, Megatron's masked softmax and loss, sums of gradients) is counted in bytes off its
own code (`models/cost/beside.py`), and who runs which, and in how many bits it reduces gradients, is what the source says
(`configurations/tables.py`).  What casts to float8 move follows how they are scaled (`models/cost/float8.py`, Transformer Engine's
documents), and weights are updated as `formal/plans/pipelines/updates.py` says: in few kernels, and a table of words that embedding
and output share once on one stage, twice on two.

Chosen with rows in view: `HOST`, seconds to launch a kernel (vTrain's).  Looked for because rows were off, and then taken
from other sources as above: every term of this list that is newer than `EAGER`.  Left out with rows in view: that an A100 of 80 GB
streams at 1.8 TB/s too (a reader of NVIDIA's forum measured it; vTrain does not say which board it has, and its rows would be 2 %
lower), and that Megatron keeps projections in one product (`models/cost/projections.py`, priced for nanotron; MLPerf's rows would
be 1.6 % lower, and the copies into heads that come with it are not counted).  That vTrain's vocabulary is not padded is
its configuration's default, and the rows agree.  Tried and not taken: a host that is slower forward than backward, as vTrain's rows
of two and more tensor parallel devices would have it (2.6 and 0.7 ms a layer).  No other source says so, and with it the order inside
groups is worse (0.90 to 0.91): a few of these rows have a host twice as fast."""

ORDER = """The published rows themselves: without stages, a step of `vtrain_single` is m (L a + e) + u for m micro-batches and L layers
within 0.1 to 0.7 % (least squares, one a and one e for every width, tensor parallel degree and micro-batch), whatever the number of
data parallel devices.  So about 30 times of a layer decide the order of 733 rows.  These times are not smooth: of width 1,024 on two
tensor parallel devices, a layer takes 3.3, 3.6, 3.2 and 5.7 ms for micro-batches of 1, 2, 4 and 8 sequences, of width 2,048 on
four 3.0, 2.7, 5.0 and 7.3, where arithmetic and collectives take 1.4, 2.2, 3.6 and 6.3.  No law of sizes alone has them all: what
issues the kernels was not equally fast in all of their runs, and nothing says when."""

BOUND = """The bound counted is what a configuration's products and attention alone take in any completion, forward as the
settings place them, at the plan's prices: weaker than the one that `audit` proves.  That
one counts every movement, as plans have it in which nothing is hidden, and lies above steps that hide theirs: four of the
five in [utilisation](flop-utilisation.md), whose plans in a row are proved within 1 %."""


def page(told: Sequence[Told], result: dict[str, object], folder: Path) -> str:
    """Markdown."""
    named = folder.as_posix()
    named = "../shared/data/measured" if named.endswith("shared/data/measured") else named
    families = result["families"]
    assert isinstance(families, dict)
    lines = [
        "# Published steps, predicted by the plan's own model",
        "",
        f"Made by `python tests/benchmarks/published_steps.py --judge {named} --page`.",
        "",
        ABOUT,
        "",
        "| family | rows | mean error | worst | rank correlation | mean of predicted / measured - 1 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, found in [*families.items(), ("all", result["all"])]:
        mine = [t for t in told if name in ("all", t.row.family)]
        bias = sum(t.error for t in mine) / max(1, len(mine))
        rank = found["rank_correlation"]
        lines.append(
            f"| {name} | {found['rows']} | {found['mean_error']:.1%} | {found['worst']:.1%} | "
            f"{'' if rank is None else format(rank, '.3f')} | {bias:+.1%} |"
        )
    left = result["left_out"]
    assert isinstance(left, dict)
    lines += [
        "",
        f"Bounds above a measured step: {result['bound_above_measured']}.  {BOUND}",
        "",
        "## Order inside groups",
        "",
        *lines_of(told),
        "",
        ORDER,
        "",
        "## Left out",
        "",
        *(f"* {rows} rows: {reason}" for reason, rows in left.items()),
        "",
        "## Worst rows",
        "",
        "| family | row | predicted s | measured s | |",
        "|---|---|---:|---:|---:|",
    ]
    for name in families:
        mine = sorted((t for t in told if t.row.family == name), key=lambda t: (-abs(t.error), t.row.label))
        lines += [
            f"| {name} | {t.row.label} | {t.seconds:.4g} | {t.row.seconds:.4g} | {t.error:+.1%} |" for t in mine[:WORST]
        ]
    return "\n".join([*lines, ""])
