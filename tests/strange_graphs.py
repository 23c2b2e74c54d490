"""Small graphs that nobody would write: constant indices, diagonals, scalars, axes of one, odd sizes, results that
nobody reads, one tensor read twice by one operator, names that look like keys of ours.  `strange_graph(seed)` is the
same graph for everybody."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.sources.building.builder import Builder

SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8)
NAMES = ("tensor:{}", "operator:{}", "{}[0]", "{} as written", "copy of {}", "{}'", "{}")
MOST_DIMENSIONS = 3
MOST_ELEMENTS = 1 << 9


class _Strange:
    """A graph that grows by random operators."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.g = Builder(f"strange-{seed}")
        self.numbers = count()
        self.tensors: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            make = self.random.choice((self.g.input, self.g.parameter))
            self.tensors.append(
                make(self.name(), [self.random.choice(SIZES) for _ in range(self.random.randint(0, MOST_DIMENSIONS))])
            )

    def name(self) -> str:
        """A new name; now and then one made from a name that is taken."""
        plain = f"t{next(self.numbers)}"
        if self.random.random() < 0.3 and self.g.tensors:
            other = self.random.choice(NAMES).format(self.random.choice(list(self.g.tensors)))
            if other not in self.g.tensors:
                return other
        return plain

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.g.tensors[tensor].shape

    def pick(self) -> str:
        return self.random.choice(self.tensors[-4:] if self.random.random() < 0.6 else self.tensors)

    def index(self, tensor: str, axes: dict[str, int]) -> list[Affine]:
        """A read of every element position in some axis, at a constant, or shifted and strided; `axes` grows."""
        out = []
        for n in self.shape(tensor):
            kind = self.random.random()
            known = [a for a, m in axes.items() if m == n]
            if kind < 0.15:
                out.append(Affine((), self.random.randrange(n)))
            elif kind < 0.55 and known:  # an axis that is there: broadcast, transposed, or a diagonal
                out.append(Affine.axis(self.random.choice(known)))
            elif kind < 0.75 and n > 1:
                stride = self.random.randint(1, 2)
                extent = self.random.randint(1, max(1, (n - 1) // stride))
                axes[f"a{len(axes)}"] = extent
                out.append(
                    Affine.axis(f"a{len(axes) - 1}", stride).shift(
                        self.random.randint(0, max(0, n - 1 - stride * (extent - 1)))
                    )
                )
            else:
                axes[f"a{len(axes)}"] = n
                out.append(Affine.axis(f"a{len(axes) - 1}"))
        return out

    def pointwise(self) -> str | None:
        """One to three operands, often the same tensor at several places."""
        tensors = [self.pick()]
        function = self.random.choice(
            ("relu", "negate", "tanh", "add", "multiply", "maximum", "subtract", "where_like", "sum_inputs")
        )
        more = {"add": 1, "multiply": 1, "maximum": 1, "subtract": 1, "sum_inputs": 2}.get(function, 0)
        tensors += [self.random.choice((tensors[0], self.pick())) for _ in range(more)]
        axes: dict[str, int] = {}
        reads = [access(t, *self.index(t, axes)) for t in tensors]
        if self.random.random() < 0.1:
            axes[f"a{len(axes)}"] = self.random.choice(SIZES)  # a broadcast
        return self.emit("identity" if function == "where_like" else function, axes, reads)

    def contraction(self) -> str | None:
        axes: dict[str, int] = {}
        tensors = [self.pick() for _ in range(self.random.randint(1, 3))]
        reads = [access(t, *self.index(t, axes)) for t in tensors]
        return self.emit("product", axes, reads, Combine.SUM)

    def reduction(self) -> str | None:
        axes: dict[str, int] = {}
        reads = [access(t, *self.index(t, axes)) for t in [self.pick()]]
        combine = self.random.choice(list(Combine))
        return self.emit(combine.value, axes, reads, combine)

    def emit(
        self, function: str, axes: dict[str, int], reads: list[object], combine: Combine | None = None
    ) -> str | None:
        summed = {a for a in axes if combine is not None and self.random.random() < 0.5}
        out = [a for a in axes if a not in summed]
        self.random.shuffle(out)
        total = 1
        for n in axes.values():
            total *= n
        if total > MOST_ELEMENTS or len(out) > MOST_DIMENSIONS + 1:
            return None
        free = [Axis(a, n, combine if a in summed else None, self.random.random() < 0.95) for a, n in axes.items()]
        self.random.shuffle(free)
        return self.g.operator(self.name(), function, free, reads, out)  # type: ignore[arg-type]

    def statistics(self) -> str | None:
        tensor = self.pick()
        rank = len(self.shape(tensor))
        if not rank:
            return None
        letters = [f"i{k}" for k in range(rank)]
        over = self.random.sample(letters, self.random.randint(1, rank))
        function = self.random.choice(("softmax", "log_softmax", "layer_norm", "rms_norm", "cumulative_sum"))
        extra: dict[str, float] = {"epsilon": 1.0} if "norm" in function else {}
        if function == "cumulative_sum":
            over = over[:1]
        text = f"{' '.join(letters)} -> {' '.join(letters)}"
        return self.g.normalise(self.name(), function, text, tensor, over=over, **extra)  # type: ignore[arg-type]

    def joined(self) -> str | None:
        """Concatenation of two tensors of one shape along one dimension, or of a tensor with itself."""
        a = self.pick()
        others = [t for t in self.tensors if self.shape(t) == self.shape(a)]
        shape = self.shape(a)
        if not shape or 2 * max(shape) > 16:
            return None
        b, k = self.random.choice(others), self.random.randrange(len(shape))
        axes = [Axis(f"i{j}", n * (2 if j == k else 1)) for j, n in enumerate(shape)]
        index = [Affine.axis(x.name) for x in axes]
        shifted = [i.shift(-shape[k]) if j == k else i for j, i in enumerate(index)]
        return self.g.operator(
            self.name(), "copy", axes, [access(a, *index), access(b, *shifted)], [x.name for x in axes]
        )

    def padded(self) -> str | None:
        a = self.pick()
        shape = self.shape(a)
        if not shape:
            return None
        before = [self.random.randint(0, 2) for _ in shape]
        axes = [
            Axis(f"i{j}", n + p + self.random.randint(0, 2)) for j, (n, p) in enumerate(zip(shape, before, strict=True))
        ]
        return self.g.operator(
            self.name(),
            "copy",
            axes,
            [access(a, *(Affine.axis(x.name).shift(-p) for x, p in zip(axes, before, strict=True)))],
            [x.name for x in axes],
        )

    def flat(self) -> str | None:
        a = self.pick()
        total = 1
        for n in self.shape(a):
            total *= n
        shape = self.random.choice(([total], [1, total], [total, 1], [] if total == 1 else [total]))
        return self.g.view(self.name(), a, shape)

    def gathered(self) -> str | None:
        tables = [t for t in self.tensors if len(self.shape(t)) == 2]
        if not tables:
            return None
        ids = self.g.input(self.name(), (self.random.choice(SIZES),), "int64")
        return self.g.embedding(self.name(), "v m, b -> b m", self.random.choice(tables), ids)

    def positions(self) -> str | None:
        return self.g.iota(
            self.name(), (self.random.choice(SIZES), self.random.choice(SIZES)), self.random.randrange(2)
        )

    def grow(self, operators: int) -> None:
        kinds: tuple[Callable[[], str | None], ...] = (
            self.pointwise,
            self.pointwise,
            self.pointwise,
            self.contraction,
            self.contraction,
            self.reduction,
            self.statistics,
            self.joined,
            self.padded,
            self.flat,
            self.gathered,
            self.positions,
        )
        while len(self.g.operators) < operators:
            made = self.random.choice(kinds)()
            if made is not None:
                self.tensors.append(made)

    def finish(self) -> Graph:
        """Any results are outputs; the others may have no reader at all."""
        computed = [op.output.tensor for op in self.g.operators]
        return self.g.build(*self.random.sample(computed, self.random.randint(1, min(3, len(computed)))))


def strange_graph(seed: int) -> Graph:
    """A graph of one to six operators."""
    made = _Strange(seed)
    made.grow(made.random.randint(1, 6))
    return made.finish()
