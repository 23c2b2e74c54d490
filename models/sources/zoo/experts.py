"""Builds a decoder whose feed-forward half is a mixture of experts: every token goes to the `chosen` best
of e experts.

    p        = softmax(x router)                            [b, s, e]
    chosen   = the k largest of p over e;   gate = p / sum of the chosen p  where chosen, else 0
    place    = number of earlier tokens of the sequence that chose the same expert      (cumulative sum over s,
             exclusive)
    combine  = gate where place = c, else 0                 [b, s, e, c],  c < capacity;      dispatch = combine > 0
    inside   = sum_s  dispatch x                            [e, b, c, m]       tokens go to their experts
    outside  = swiglu_e(inside)
    y        = sum_{e, c}  combine outside                  [b, s, m]          and come back

This is GShard's formulation: a token beyond an expert's capacity  ceil(percent/100 k s / e)  is dropped by this expert.
Where tokens are split over b and experts over e, `inside` and `outside` change from one to the other, which is the
all-to-all of expert parallelism.  Places are counted per sequence (GShard's group = one sequence), so splitting b needs
no communication; s is not split there.

With capacity 0 no token is dropped: experts are grouped products, whose load is an assumption (`even-groups`).

    y        = sum_{j, e, f}  [chosen_j = e]  gate_j  swiglu_e(x)  down[e]

Split over e, these leave partial sums over experts: tokens are gathered, and their sums scattered again.

One simplification: places are counted in token order over all k choices together, where GShard serves every first
choice before any second one; this changes only which tokens are dropped when an expert overflows.  No load-balancing
loss.

Sources: Lepikhin et al., GShard (2020), Algorithm 1; Jiang et al., Mixtral of Experts (2024), Table 1 and section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...keywords import keywords_of
from ...program.graph import Graph, GraphError
from ...program.index import Axis, Combine, access
from ..building.builder import Builder
from .decoder import Sizes, decoder, sizes


@dataclass(frozen=True)
class Experts:
    """Number of experts, experts per token, places per expert and sequence in percent of an even distribution; 0: as
    many as come.
    """

    count: int
    chosen: int
    capacity_percent: int

    def capacity(self, sequence: int) -> int:
        """Places per expert and sequence."""
        return max(1, -(-self.capacity_percent * self.chosen * sequence // (100 * self.count)))

    def __call__(self, g: Builder, name: str, x: str, w: Sizes) -> str:
        """The feed-forward half: x[b, s, m] -> [b, s, m]."""
        if self.capacity_percent == 0:
            return self._dropless(g, name, x, w)
        combine, dispatch = self.route(g, f"{name}.route", x, w)
        inside = g.contract(f"{name}.dispatch", "b s e c, b s m -> e b c m", dispatch, x)
        outside = self._swiglu(g, name, inside, w)
        return g.contract(f"{name}.combine", "b s e c, e b c m -> b s m", combine, outside)

    def _dropless(self, g: Builder, name: str, x: str, w: Sizes) -> str:
        """Every token through the experts it chose, however many chose the same."""
        logits = g.contract(
            f"{name}.route.logits", "b s m, m e -> b s e", x, g.parameter(f"{name}.route.weight", (w.model, self.count))
        )
        p = g.normalise(f"{name}.route.softmax", "softmax", "b s e -> b s e", logits, over=("e",))
        order = g.normalise(
            f"{name}.route.order", "argsort", "b s e -> b s e", p, over=("e",), dtype="int64", descending=1
        )
        (batch, sequence, _), j = g.tensors[x].shape, self.chosen
        axes = [Axis(a, n) for a, n in (("b", batch), ("s", sequence), ("j", j))]
        first = [access(order, "b", "s", "j")]
        ids = g.operator(f"{name}.route.chosen", "copy", axes, first, ["b", "s", "j"], {}, "int64")
        best = g.operator(
            f"{name}.route.best",
            "embedding",
            [*axes, Axis("e", self.count, Combine.SUM)],
            [access(p, "b", "s", "e"), access(ids, "b", "s", "j")],
            ["b", "s", "j"],
            {"rows": "e"},
        )
        gate = g.map(
            f"{name}.route.gate",
            "divide",
            best,
            g.reduce(f"{name}.route.total", "b s j -> b s", best),
            text="b s j, b s -> b s j",
        )
        shape = (self.count, w.model, w.hidden)
        up, wide = (
            g.grouped_product(
                f"{name}.{part}",
                "b s m, e m f, b s j -> b s j f",
                x,
                g.parameter(f"{name}.{part}.weight", shape),
                ids,
                rows="e",
            )
            for part in ("gate", "up")
        )
        y = g.map(f"{name}.silu", "silu", up, text="b s j f -> b s j f")
        y = g.map(f"{name}.gated", "multiply", y, wide, text="b s j f, b s j f -> b s j f")
        y = g.map(f"{name}.weighed", "multiply", y, gate, text="b s j f, b s j -> b s j f")
        down = g.parameter(f"{name}.down.weight", (self.count, w.hidden, w.model))
        return g.grouped_product(f"{name}.down", "b s j f, e f m, b s j -> b s m", y, down, ids, rows="e")

    def route(self, g: Builder, name: str, x: str, w: Sizes) -> tuple[str, str]:
        """(combine, dispatch) of the module docstring."""
        logits = g.contract(
            f"{name}.logits", "b s m, m e -> b s e", x, g.parameter(f"{name}.weight", (w.model, self.count))
        )
        p = g.normalise(f"{name}.softmax", "softmax", "b s e -> b s e", logits, over=("e",))
        chosen = g.normalise(f"{name}.chosen", "top_k_mask", "b s e -> b s e", p, over=("e",), k=self.chosen)
        kept = g.map(f"{name}.kept", "mask_fill", p, chosen, text="b s e, b s e -> b s e", value=0.0)
        gate = g.map(
            f"{name}.gate", "divide", kept, g.reduce(f"{name}.total", "b s e -> b s", kept), text="b s e, b s -> b s e"
        )
        place = g.normalise(
            f"{name}.place", "cumulative_sum", "b s e -> b s e", chosen, over=("s",), dtype="int32", exclusive=1
        )
        slots = g.iota(f"{name}.slots", (self.capacity(g.tensors[x].shape[1]),), 0, dtype="int32")
        here = g.map(f"{name}.here", "equal", place, slots, text="b s e, c -> b s e c")
        combine = g.map(f"{name}.combine", "mask_fill", gate, here, text="b s e, b s e c -> b s e c", value=0.0)
        taken = g.map(f"{name}.taken", "greater", combine, text="b s e c -> b s e c", value=0.0)
        return combine, g.map(f"{name}.dispatch", "cast", taken, text="b s e c -> b s e c")

    def _swiglu(self, g: Builder, name: str, x: str, w: Sizes) -> str:
        """One gated feed-forward half per expert: x[e, b, c, m]."""
        weights = [g.parameter(f"{name}.{part}.weight", (self.count, w.model, w.hidden)) for part in ("gate", "up")]
        gate, up = (
            g.contract(f"{name}.{part}", "e b c m, e m f -> e b c f", x, u)
            for part, u in zip(("gate", "up"), weights, strict=True)
        )
        y = g.map(f"{name}.silu", "silu", gate, text="e b c f -> e b c f")
        y = g.map(f"{name}.gated", "multiply", y, up, text="e b c f, e b c f -> e b c f")
        return g.contract(
            f"{name}.down",
            "e b c f, e f m -> e b c m",
            y,
            g.parameter(f"{name}.down.weight", (self.count, w.hidden, w.model)),
        )


@dataclass(frozen=True)
class MoeSizes:
    """See `moe`."""

    batch: int = 32
    layers: int = 32
    sequence: int = 4096
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336
    experts: int = 8
    chosen: int = 2
    capacity_percent: int = 125
    vocabulary: int = 32_000
    theta: int = 1_000_000
    dtype: str = "bfloat16"


@keywords_of(MoeSizes)
def moe(of: MoeSizes) -> Graph:
    """Mixtral 8x7B: 46,702,792,704 parameters, 2 of 8 experts per token; capacity 1.25 times the even share (0: no
    token is dropped); output: logits [b, s, v].
    """
    if of.chosen > of.experts:
        raise GraphError(
            "model 'moe'", f"chosen={of.chosen} experts per token, but there are only experts={of.experts}"
        )
    w = sizes("moe", of.width, of.heads, of.kv_heads, of.hidden, of.theta)
    routed = Experts(of.experts, of.chosen, of.capacity_percent)
    return decoder("moe", of.batch, of.layers, of.sequence, w, of.vocabulary, of.dtype, routed)
