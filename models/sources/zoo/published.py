"""Models of published sizes, with what is known of their training: zoo models whose options are those
of a paper.

`batch` is in examples (sequences), `train` what `--train` takes; the words of `source` say where both are from, and
what is not published.  Attention is one operator, as nobody stores scores at these sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ...program.graph import Graph
from . import decoder, experts, gpt, vit

Sizes = Mapping[str, int | str]


@dataclass(frozen=True)
class Published:
    """`make` builds the model from `sizes`, its batch among them; `train`: optimizer and its numbers, empty where not
    published; `parameters`: how many there are.
    """

    make: Callable[..., Graph]
    sizes: Sizes
    train: str
    parameters: int
    source: str


_LLAMA: Final = "Llama 3 (Grattafiori et al., 2024), table 3 and section 3.4.1"

PUBLISHED: Final[Mapping[str, Published]] = MappingProxyType(
    {
        "gpt-3-175b": Published(
            gpt.gpt,
            {"batch": 1536, "depth": 96, "sequence": 2048, "width": 12288, "heads": 96},
            "adamw:rate=6e-5,beta2=0.95,decay=0.1,clip=1",
            174_604_259_328,
            "Brown et al. (2020), table 2.1 and appendix B: 3.2 million tokens per step, here 1536 sequences",
        ),
        "llama-3-8b": Published(
            decoder.llama,
            {"batch": 512},
            "adamw:rate=3e-4",
            8_030_261_248,
            f"{_LLAMA}: 4 million tokens per step of the first stage (of the 405B); decay and clipping not published",
        ),
        "llama-3-70b": Published(
            decoder.llama,
            {"batch": 512, "layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "hidden": 28672},
            "adamw:rate=1.5e-4",
            70_553_706_496,
            f"{_LLAMA}: 4 million tokens per step of the first stage (of the 405B); decay and clipping not published",
        ),
        "llama-3-405b": Published(
            decoder.llama,
            {"batch": 2048, "layers": 126, "width": 16384, "heads": 128, "kv_heads": 8, "hidden": 53248},
            "adamw:rate=8e-5",
            405_853_388_800,
            f"{_LLAMA}: 16 million tokens per step of the second stage; decay and clipping not published",
        ),
        "mixtral-8x7b": Published(
            experts.moe,
            {"batch": 512},
            "",
            46_702_792_704,
            "Jiang et al., Mixtral of Experts (2024), table 1; training is not published: 512 sequences of 4096 tokens",
        ),
        "vit-l": Published(
            vit.vit,
            {"batch": 4096, "depth": 24, "width": 1024, "heads": 16, "hidden": 4096},
            "adam:rate=4e-4,decay=0.1",
            304_326_632,
            "Dosovitskiy et al., An Image is Worth 16x16 Words (2021), tables 1 and 3 (JFT-300M), section 4.1",
        ),
    }
)
"""Name -> the model, besides those of the zoo."""
