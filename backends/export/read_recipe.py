"""Reads from the graph of a plan how a training step is computed, beside where its tensors lie.

    precision       the half type that weights kept in float32 are cast to, by which rule: `autocast` (every operator in
                    the type that torch.autocast gives it) or a model in that type; the type gradients are summed in
    recomputation   blocks whose values the reverse pass computes again (activation checkpointing)
    micro-batches   parts of the batch, one after another; `once`: gradients are brought together once a step
    optimizer       what updates each weight, with its numbers; the norm that gradients are clipped to
    loss            what is minimised: what the model returns, or a loss that was added to one of its outputs
    attention       operators that store no scores, or scores that are products and a softmax

Names in a file prove nothing, so all of it is read from operators and element types: the rule of a precision is the one
that no operator contradicts.  What a job of PyTorch cannot do is in `refused`, by part, with the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod

from ...models.program.graph import Graph, Role
from ...models.program.operators import HOST_COPIES, NodeKind, Operator
from ...models.sources.precision.policy import LOSSES, Compute, computed_in
from ...models.sources.precision.rewriting import real
from ...models.sources.training.recompute import PREFIX, block_of
from .modules import PART, forward_operators, micro_batches, moments, weights_read
from .recipe import LAYOUTS_ONLY, SHORT, TORCH, Group, Loss, Recipe


def recipe(graph: Graph) -> Recipe:
    """How the step of a plan is computed.

    >>> from ...models.sources.training import build_step
    >>> from ...models.sources.zoo import build
    >>> found = recipe(build_step(build("bert-tiny"), "adamw", recompute="layer0", precision="bf16-master").graph)
    >>> found.precision, found.recomputed, found.groups[0].kind, found.loss.kind, found.refused
    ('bf16-master', ('layer0',), 'adamw', 'squared-error', ())
    """
    return _Read(graph).recipe()


class _Read:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dtype = {t.name: t.dtype for t in graph.tensors}
        self.role = {t.name: t.role for t in graph.tensors}
        self.trained = {name for name, _ in graph.state}
        self.refused: list[tuple[str, str]] = []
        kept = {name for names in moments(graph).values() for name in names.values()}
        self.weights = self.trained - kept
        self.read = weights_read(graph)
        wanted = set(graph.outputs)
        every = list(forward_operators(graph))
        for op in reversed(every):
            if op.output.tensor in wanted:
                wanted.update(a.tensor for a in op.inputs)
        first = (op for op in every if not ((m := PART.search(op.name)) and int(m[1])))
        self.forward = [op for op in first if op.output.tensor in wanted]
        self.own = {op.name for op in every}

    @cached_property
    def writer(self) -> dict[str, Operator]:
        """Who writes a tensor."""
        return {op.output.tensor: op for op in self.graph.operators}

    def recipe(self) -> Recipe:
        """All of it."""
        half, autocast, reduce = self.precision()
        count = micro_batches(self.graph)
        once = any(self._over_parts(op) for op in self.graph.operators)
        groups = self.groups()
        clips = {op.attribute("clip", 0.0) for op in self.graph.operators if op.function == "clip_factor"}
        return Recipe(
            bool(self.graph.state),
            half,
            autocast,
            reduce,
            self.checkpointed_blocks(),
            count,
            once,
            groups,
            next((float(c) for c in clips if isinstance(c, (int, float))), None),
            self.loss() if self.graph.state else None,
            sum(op.function == "attention" for op in self.forward),
            sum(self._scores(op) for op in self.forward),
            tuple(self.refused),
        )

    def refuse(self, part: str, why: str) -> None:
        """What a job does not do."""
        self.refused.append((part, why))

    def _over_parts(self, op: Operator) -> bool:
        gradient = op.output.tensor.endswith(".all") and op.output.tensor.startswith(("grad:", "unscaled:"))
        return gradient and op.function == "sum" and [a.name for a in op.reduction_axes] == ["part"]

    def _scores(self, op: Operator) -> bool:
        if op.function != "softmax":
            return False
        above = self.writer.get(op.inputs[0].tensor)
        while above is not None and above.kind is not NodeKind.CONTRACT and above.inputs:
            above = self.writer.get(above.inputs[0].tensor)
        return above is not None and len(above.inputs) == 2 and not self._reads_weight(above)

    def _reads_weight(self, op: Operator) -> bool:
        return any(a.tensor in self.read for a in op.inputs)

    def precision(self) -> tuple[str | None, bool, str]:
        """(half type, whether every operator chooses its type, type in which gradients are summed)."""
        casts = {t for t, w in self.read.items() if t != w}
        halves = {self.dtype[t] for t in casts if self.dtype[t] in SHORT}
        if not halves:
            return None, False, "float32"
        half = min(halves)
        sums = {self.dtype[g] for t in casts if (g := f"grad:{t}") in self.dtype or (g := f"grad:{t}@0") in self.dtype}
        reduce = "float32" if "float32" in sums or not sums else half
        if any(name.startswith("loss_scale") for name in self.trained):
            self.refuse(
                "precision",
                "float16 has a loss scale, which the file does not keep: plan with --precision bf16-mixed or "
                f"bf16-master, or {LAYOUTS_ONLY}",
            )
        by_rule = any(
            self.dtype[a.tensor] == "float32" and a.tensor in self.weights
            for op in self.forward
            if op.output.tensor not in casts
            for a in op.inputs
        )
        by_model = False
        for op in self.forward:
            out = self.dtype[op.output.tensor]
            if computed_in(op) is Compute.FLOAT and op.function not in LOSSES and real(out) and op.inputs:
                reads = {self.dtype[a.tensor] for a in op.inputs}
                by_model = by_model or out in SHORT
                late = any(a.tensor in self.float32_after_loss for a in op.inputs)
                by_rule = by_rule or (out == "float32" and bool(reads & {*SHORT}) and not late)
        if by_rule and by_model:
            self.refuse(
                "precision",
                "some operators compute as torch.autocast has it and others as a model in half precision: plan with "
                f"one --precision, or {LAYOUTS_ONLY}",
            )
        return half, by_rule, reduce

    @cached_property
    def float32_after_loss(self) -> set[str]:
        """What a loss has raised to float32, and what is computed of it."""
        found: set[str] = set()
        for op in self.forward:
            if op.function in LOSSES or any(a.tensor in found for a in op.inputs):
                found.add(op.output.tensor)
        return found

    def checkpointed_blocks(self) -> tuple[str, ...]:
        """Blocks that are computed again, in the order of the forward pass."""
        if copies := [op.name for op in self.graph.operators if op.function in HOST_COPIES]:
            self.refuse(
                "recomputation",
                f"{copies[0]!r} and {len(copies) - 1} more copy tensors to hosts and back, which no target says: plan "
                f"without --offload, or {LAYOUTS_ONLY}",
            )
        again = {
            PART.sub("", op.name.removeprefix(PREFIX)) for op in self.graph.operators if op.name.startswith(PREFIX)
        }
        found = dict.fromkeys(block_of(PART.sub("", op.name)) or "" for op in self.forward)
        blocks = {block_of(name) or name for name in again}
        modules = {t.name for t in self.graph.tensors if t.role is Role.PARAMETER}
        for block in sorted(blocks):
            if not any(name.startswith(f"{block}.") for name in modules):
                others = ", ".join(sorted(b for b in blocks if any(n.startswith(f"{b}.") for n in modules))[:8])
                self.refuse(
                    "recomputation",
                    f"block {block!r} has no parameters, so it is no module that a job can compute again: plan with "
                    f"--recompute {others or 'none'}, or {LAYOUTS_ONLY}",
                )
        for block in sorted(blocks):
            if kept := self._kept_inside(block, again):
                self.refuse(
                    "recomputation",
                    f"block {block!r} is computed again but for {kept!r}, which is kept; a job computes a block again "
                    f"as a whole: plan with --recompute, or {LAYOUTS_ONLY}",
                )
        return tuple(b for b in found if b in blocks) + tuple(sorted(blocks - {*found}))

    def _kept_inside(self, block: str, again: set[str]) -> str:
        """A value of the block that the reverse pass reads as it was kept, though the block's others are not."""
        mine = {op.output.tensor: op for op in self.forward if block_of(PART.sub("", op.name)) == block}
        readers: dict[str, set[str]] = {t: set() for t in mine}
        for op in self.graph.operators:
            for a in op.inputs:
                if a.tensor in readers and not op.name.startswith(PREFIX):
                    readers[a.tensor].add(op.name)
        names = {op.name for op in mine.values()}
        for t, who in readers.items():
            outside = {n for n in who & self.own if n not in names} or t in self.graph.outputs
            if not outside and who - self.own and PART.sub("", mine[t].name) not in again:
                return t
        return ""

    def groups(self) -> tuple[Group, ...]:
        """What updates the weights, those with equal numbers together."""
        found: dict[tuple[str, tuple[tuple[str, float | tuple[float, float] | bool], ...]], list[str]] = {}
        for weight, following in self.graph.state:
            if weight not in self.weights or weight.startswith("loss_scale"):
                continue
            rule = self._rule(weight, self.writer.get(following))
            if rule is not None:
                found.setdefault(rule, []).append(weight)
                self._moments(weight)
        kinds = sorted({kind for kind, _ in found})
        if len(kinds) > 1:
            self.refuse(
                "optimizer",
                f"weights are updated by {' and by '.join(kinds)}; the file builds one: plan with --train "
                f"{kinds[0]}, or {LAYOUTS_ONLY}",
            )
        for kind in kinds:
            if kind not in TORCH:
                self.refuse(
                    "optimizer",
                    f"the file does not build {kind}: plan with --train {', '.join(TORCH)}, or {LAYOUTS_ONLY}, and "
                    "make_optimizer takes a class of yours",
                )
        return tuple(Group(kind, numbers, tuple(weights)) for (kind, numbers), weights in found.items())

    def _moments(self, weight: str) -> None:
        for name in moments(self.graph).get(weight, {}).values():
            if self.dtype[name] != self.dtype[weight] and not any(p == "optimizer" for p, _ in self.refused):
                self.refuse(
                    "optimizer",
                    f"{name!r} is kept in {self.dtype[name]}, its weight in {self.dtype[weight]}; torch.optim keeps "
                    "both alike: plan with --precision bf16-master and without bits= (or with bits=16 of weights in "
                    f"half precision), or {LAYOUTS_ONLY}",
                )

    def _rule(
        self, weight: str, op: Operator | None
    ) -> tuple[str, tuple[tuple[str, float | tuple[float, float] | bool], ...]] | None:
        kept, decay = moments(self.graph).get(weight, {}), self._number(f"{weight}.decayed", "decay")
        for own in ("muon", "adafactor"):
            if any(own in name for name in (*kept.values(), op.name if op else "", *self._before(op))):
                return own, ()
        match "" if op is None else op.function:
            case "adam_update" | "adamw_update" if op is not None:
                kind = op.function.removesuffix("_update")
                b1, b2, eps, rate = (_number(op, k) for k in ("beta1", "beta2", "epsilon", "rate"))
                shrink = _number(op, "decay") if kind == "adamw" else decay
                return kind, (("lr", rate), ("betas", (b1, b2)), ("eps", eps), ("weight_decay", shrink))
            case "sgd_update" if op is not None and not {*kept} & {"rmsprop_v", "adagrad_v"}:
                momentum = self._number(f"{weight}.momentum.next", "momentum")
                nesterov = f"{weight}.nesterov" in self.writer
                numbers = (("lr", _number(op, "rate")), ("momentum", momentum), ("weight_decay", decay))
                return "sgd", (*numbers, ("nesterov", nesterov))
            case "sgd_update" if op is not None:
                eps, rate = self._number(f"{weight}.divisor", "shift"), _number(op, "rate")
                if "adagrad_v" in kept:
                    return "adagrad", (("lr", rate), ("eps", eps), ("weight_decay", decay))
                alpha = self._number(f"{weight}.rmsprop_v.next", "beta2")
                momentum = self._number(f"{weight}.momentum.next", "momentum")
                shared = (("lr", rate), ("alpha", alpha), ("eps", eps), ("weight_decay", decay))
                return "rmsprop", (*shared, ("momentum", momentum))
            case "lion_update":
                return "lion", ()
            case _:
                return f"an update of its own ({'' if op is None else op.function})", ()

    def _before(self, op: Operator | None) -> list[str]:
        return [] if op is None else [a.tensor for a in op.inputs]

    def _number(self, tensor: str, key: str) -> float:
        return _number(self.writer[tensor], key) if tensor in self.writer else 0.0

    def loss(self) -> Loss:
        """What is minimised."""
        of = {op.output.tensor: op for op in self.forward}
        for kind, input_, name in (
            ("cross-entropy", "labels", "loss.picked"),
            ("squared-error", "target", "loss.squares"),
        ):
            for op in of.values():
                plain = PART.sub("", op.name).rstrip("'")
                reads = [a.tensor for a in op.inputs]
                target = next((t for t in reads if self.role[t] is Role.INPUT and t.rstrip("'") == input_), "")
                if plain != name or not target:
                    continue
                x = next(t for t in reads if t != target)
                if (above := of.get(x)) is not None and PART.sub("", above.name).rstrip("'") == "loss.log_softmax":
                    x = above.inputs[0].tensor
                elif kind == "cross-entropy":
                    kind = "log-likelihood"
                t = self.graph.tensor(x)
                return Loss(kind, PART.sub("", x), t.shape, target, "mean")
        return Loss("returned", PART.sub("", self.graph.outputs[0]), (), "", self._over())

    def _over(self) -> str:
        """How the loss that a model returns depends on the number of examples: by what its sums are multiplied with."""
        count = micro_batches(self.graph)
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [op for op in self.forward if PART.sub("", op.output.tensor) == self.graph.outputs[0]]
        while waiting:
            op = waiting.pop()
            if op.name in seen:
                continue
            seen.add(op.name)
            if op.function == "divide" and self._counts(op.inputs[1].tensor):
                found.add("counted")
            elif op.function == "sum" and (size := prod(a.extent for a in op.reduction_axes)) > 1:
                scale = abs(_number(op, "scale") or 1.0)
                found.add("sum" if scale == 1.0 else "mean" if 0.5 < scale * size * count < 2 else "other")
            elif not op.over:
                waiting += [w for a in op.inputs if (w := self.writer.get(a.tensor)) is not None and w in self.forward]
        if count > 1 and (len(found) != 1 or "other" in found):
            self.refuse(
                "loss",
                "how the losses of micro-batches make that of the batch is not seen "
                f"({', '.join(sorted(found)) or 'no sum over examples'}): plan without --micro-batch, or "
                f"{LAYOUTS_ONLY}",
            )
        return min(found, default="mean")

    def _counts(self, tensor: str) -> bool:
        """Whether a number is a count: a sum of truth values, cast."""
        op = self.writer.get(tensor)
        while op is not None and op.function in ("cast", "sum", "sum_inputs", "maximum", "clamp") and op.inputs:
            if self.dtype[op.inputs[0].tensor] == "bool":
                return True
            op = self.writer.get(op.inputs[0].tensor)
        return False


def _number(op: Operator, key: str) -> float:
    value = op.attribute(key, 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def batch_cut(graph: Graph) -> Iterator[str]:
    """Inputs that micro-batches read a part of each: their first dimension counts the micro-batches."""
    count = micro_batches(graph)
    for t in graph.tensors:
        whole = t.source_shape or t.shape
        first = count > 1 and t.role is Role.INPUT and t.shape[:1] == (count,) and prod(whole) == t.elements
        if first and whole != t.shape:
            yield t.name


def half_inputs(graph: Graph) -> Iterator[str]:
    """Inputs that the program reads cast to a half type only."""
    readers = graph.readers()
    forward = {op.name for op in forward_operators(graph)}
    for t in graph.tensors:
        if t.role is not Role.INPUT or t.dtype != "float32":
            continue
        reads = [op for i, _ in readers[t.name] if (op := graph.operators[i]).name in forward]
        if reads and all(op.function == "cast" and graph.tensor(op.output.tensor).dtype in SHORT for op in reads):
            yield t.name
