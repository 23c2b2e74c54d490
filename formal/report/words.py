"""The assumptions of a claim in sentences, and foreign names as text of a page."""

from __future__ import annotations

from html import escape as in_html
from typing import Final

from ...models.text import escape_text

SENTENCES: Final = {
    "collective-programs": "Reductions take these collective programs.",
    "class-order": "Devices that share a dimension are numbered in one global order of axes.",
    "closed-reads": "No operator reads partial sums: they are added up before.",
    "inputs-anywhere": "Inputs and weights start where they are wanted; bringing them there is not counted.",
    "no-overlap": "Operators and communication run one after another.",
    "one-copy-per-tensor": "Readers of a tensor share one resharded copy.",
    "receive-side": "A link is priced by what enters the devices behind it.",
    "whole-taps": "Windows of a convolution are not split.",
    "even-splits": "Every axis is cut into equal parts.",
    "one-step-redistribution": "A tensor goes from one layout to the next directly; no layout in between is tried.",
    "no-memory-limit": "Memory was not limited.",
    "every-operand-received": "Every operand that may move gets a buffer of its own, whether it moves or not.",
    "packing-not-counted": "What a transport packs into messages is not counted as memory.",
    "donated-state": "The next value of a weight takes over the weight's memory.",
    "even-groups": "Groups (experts) get equally many rows.",
    "counted-groups": "Groups (experts) of these get shares of the rows as they were counted",
    "said-by-dtensor": "Only placements were allowed that PyTorch's DTensor can say.",
    "said-by-jax": "Only placements were allowed that JAX's PartitionSpecs can say.",
    "unpriced-resources": "The machine's file names shared links that the plan is not priced with",
    "measured-collectives": "Collectives are priced by the machine's measured forms on these levels",
    "measured-products": "Matrix products of these types are priced by the machine's measured tiles",
    "measured-attention": "Attention in these types is priced by the machine's measured forms",
    "links-by-bandwidth": "These levels have no measured collectives; bandwidth and latency price them",
    "roofline-work": "These operators have no measured form; peaks and memory bandwidth price them",
    "contiguous-queries": "Attention with a band is cut into runs of queries, of which the slowest is priced",
    "unsplit-axes": "The model says that some axes are never split",
}

OF_JOINT_PLANS: Final = {
    "rows-of-open-programs": "A tensor is kept for the latest of all programs that a choice leaves open.",
    "graphs: egraph": "Programs were compared that this library of rules finds in so many rounds",
    "real-arithmetic": "Programs are equal in real numbers; rounding may differ.",
}


def sentence(flag: str) -> str:
    """An assumption in words; what a flag lists in brackets is kept.

    >>> sentence("no-overlap")
    'Operators and communication run one after another.'
    >>> sentence("unsplit-axes(2: a.x b.y)")
    'The model says that some axes are never split: 2: a.x b.y.'
    """
    name, bracket, rest = flag.partition("(")
    words = SENTENCES.get(name) or OF_JOINT_PLANS.get(name, name)
    return f"{words}: {rest.removesuffix(')')}." if bracket else words


def escape(text: str) -> str:
    """A name as text of a page: what is markup in HTML stands for itself, and what cannot be printed (line ends,
    controls, directions of writing) is written as an escape.

    >>> escape("<b>" + chr(0x202E) + "x"), escape(chr(34))
    ('&lt;b&gt;\\\\u202ex', '&quot;')
    """
    return in_html(escape_text(text))
