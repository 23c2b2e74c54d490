"""What Megatron, DeepSpeed and other frameworks are told to spread a step: degrees.

state sharded over the copies    0 nothing;  1 optimizer;  2 and gradients;  3 and parameters        (ZeRO's stages)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...text import InputError

MAX_DEGREE: Final = 1 << 20


@dataclass(frozen=True)
class Flags:
    """Degrees (1: not split), batches and copies (0: not said); `zero` as in the module's table; `source`: the
    framework.  `passing`: samples of a copy that go through the stages before these run empty, or that are its part of
    a step; `steps`: micro-batches of a step (gradient accumulation); `width_open`: what tensor parallelism leaves whole
    is split along its width in some way that is not said, and stays open; `devices`: how many processes are started.
    """

    source: str
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    micro_batch: int = 0
    global_batch: int = 0
    dp: int = 0
    passing: int = 0
    steps: int = 0
    width_open: bool = False
    devices: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "ep"):
            if not 1 <= getattr(self, name) <= MAX_DEGREE:
                raise InputError(f"{self.source}: {name} is {getattr(self, name)}; it has to be at least 1")
        if self.zero not in range(4):
            raise InputError(f"{self.source}: stage {self.zero} is none of ZeRO's 0 to 3")
        if self.sequence_parallel and self.tp == 1:
            raise InputError(
                f"{self.source}: sequence parallelism splits what tensor parallelism leaves whole; give tp, or leave "
                "it out"
            )

    def copies(self, devices: int) -> int:
        """Data parallel copies on so many devices.  Raises `InputError` if the degrees do not divide them, and
        if another number of processes is started.

        >>> Flags("Megatron", tp=8, cp=2).copies(64)
        4
        """
        if self.devices and self.devices != devices:
            raise InputError(
                f"{self.source}: {self.devices} processes are started on a machine of {devices} devices; give the "
                "machine that has as many, or start as many"
            )
        ways = self.tp * self.pp * self.cp
        if devices % ways:
            some = devices // ways * ways
            use = (
                f"; {some} of them would do: name a machine of {some}, --machine with sizes that multiply to {some}"
                if some
                else f"; it takes a machine of {ways} devices or a multiple"
            )
            raise InputError(
                f"{self.source}: tp {self.tp} x pp {self.pp} x cp {self.cp} is {ways}, which does not divide {devices} "
                f"devices{use}"
            )
        if self.dp and self.dp != devices // ways:
            raise InputError(
                f"{self.source}: {self.dp} data parallel copies of {ways} devices are not {devices} devices"
            )
        return devices // ways
