"""What a file of settings says: degrees, sizes, and what else an audit has to agree with, beside the
words that it read, listed by what they change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ...layout.targets.degrees import Flags
from .words import Sorted, Value

SIZES = (
    "layers",
    "width",
    "hidden",
    "heads",
    "kv_heads",
    "head",
    "sequence",
    "vocabulary",
    "experts",
    "chosen",
)
"""Names of ours for the sizes of a transformer: layers, model width, feed-forward width, heads, heads of keys, elements
of a head, tokens, vocabulary, experts, experts of a token.
"""


_SHORT: Final = {"bfloat16": "bf16", "float16": "fp16"}

Masters = Literal["beside", "cast", "none"]
"""Weights in float32 beside those in the half type; in float32 alone, cast where they are read; in the half type
alone."""


@dataclass(frozen=True)
class Size:
    """`value` under the framework's `word`, which says the size `name` (one of `SIZES`)."""

    name: str
    word: str
    value: int


@dataclass(frozen=True)
class OtherChoice:
    """A choice of another kind: the framework's `word`, and what it says in words of ours.  `usual`: the file leaves it
    out, and the framework does so by itself; `word` then says that, and options may say otherwise.
    """

    word: str
    value: str
    usual: bool = False


@dataclass(frozen=True)
class Settings:
    """`flags`: degrees; of a model that is audited `sizes`, `family` (llama, experts), `half` (the type of its
    products), `gradients` (the type of their sums over devices), `attention` (fused, matrices), `recompute` (all, none)
    and `optimizer` (adam, sgd, adafactor), None where not said; `half_sums`: gradients are summed in the half type
    where nothing is said of them; `masters`: of the weights, where a half type is said.  A server (`serves`) says the
    most that it takes (`limits`).  Of the words themselves, in `words`, those of `idle` change nothing with the others
    as they are, those of `uncompared` are sizes that the model has no axis for.
    """

    flags: Flags
    words: Sorted | None = None
    sizes: tuple[Size, ...] = ()
    family: OtherChoice | None = None
    half: OtherChoice | None = None
    gradients: OtherChoice | None = None
    attention: OtherChoice | None = None
    recompute: OtherChoice | None = None
    optimizer: OtherChoice | None = None
    half_sums: bool = False
    masters: Masters = "beside"
    serves: bool = False
    limits: tuple[Size, ...] = ()
    idle: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()

    @property
    def precision(self) -> str | None:
        """What `--precision` would say of a step: weights are kept in float32 beside the half type that is said, as
        these frameworks keep them, or cast by `torch.autocast`; None where no half type is, and where weights are in
        it alone.  Where nothing else is said, gradients are summed in
        float32, and with `half_sums` in the half type.

        >>> Settings(Flags("Megatron"), half=OtherChoice("--bf16", "bfloat16")).precision
        'bf16-master'
        """
        short = None if self.half is None else _SHORT.get(self.half.value)
        if self.half is None or short is None or self.masters == "none":
            return None
        usual = self.half.value if self.half_sums else "float32"
        sums = usual if self.gradients is None else self.gradients.value
        return f"{short}-{'mixed' if self.masters == 'cast' else 'master'}" + (
            "" if sums == "float32" else f":reduce={sums}"
        )

    def to_json(self) -> dict[str, object]:
        """Plain data: every word of the file in one of the groups of `words`."""
        w = self.words
        read: dict[str, Value] = (
            {} if w is None else {n: v for n, v in w.read if n not in (*self.idle, *self.uncompared)}
        )
        choices = (self.half, self.gradients, self.attention, self.recompute, self.optimizer)
        return {
            "framework": self.flags.source,
            "read": read,
            "by_default": [*(c.word for c in choices if c is not None and c.usual), *self._batch_left_out()],
            "no_effect": [*self.idle, *(() if w is None else w.no_effect)],
            "not_compared": [*self.uncompared, *(() if w is None else w.not_compared)],
            "unsupported": [] if w is None else list(w.neutral),
            "not_said": [] if w is None else list(w.not_said),
        }

    def _batch_left_out(self) -> list[str]:
        """What a framework takes for the batch of a step where its words say that of a copy alone."""
        f = self.flags
        if not f.micro_batch or f.global_batch or f.steps or f.passing or self.serves:
            return []
        share = self.words.word("micro_batch", "micro-batch") if self.words is not None else "micro-batch"
        return [f"batch of a step by default one {share} {f.micro_batch} a copy, audited as the model's"]

    def line(self) -> str:
        """One line for people.

        >>> Settings(Flags("FSDP", zero=3)).line()
        'settings of FSDP: 0 words read'
        """
        found = self.to_json()
        rest = (
            ("by_default", "are left out"),
            ("no_effect", "change nothing in our model"),
            ("not_compared", "describe the model and are not compared with it"),
            ("unsupported", "are at the value under which they change nothing"),
            ("not_said", "are left to the launcher"),
        )
        parts = [f"{len(found['read'])} words read"]  # type: ignore[arg-type]
        for key, meaning in rest:
            names = found[key]
            assert isinstance(names, list)
            if names:
                shown = ", ".join(str(n) for n in names[:4]) + (", .." if len(names) > 4 else "")
                parts.append(f"{len(names)} {meaning} ({shown})")
        return f"settings of {self.flags.source}: {'; '.join(parts)}"


def sizes_of_words(said: Sorted) -> tuple[Size, ...]:
    """The sizes among the words."""
    return tuple(Size(name, said.word(name), said.count(name, 0)) for name in SIZES if name in said.values)
