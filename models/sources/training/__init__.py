"""Training steps: reverse-mode differentiation of a graph, a loss, an optimizer, in the same index
notation.

What ZeRO, gradient synchronisation and re-gathering of weights do is not written here: the step is a graph like any
other, its stored weights have layouts (`Graph.state`), and the search finds them.
"""

from .settings import OPTIMIZERS, Settings, parse_optimizer
from .step import TrainingStep, build_step, training_step

__all__ = ["OPTIMIZERS", "Settings", "TrainingStep", "build_step", "parse_optimizer", "training_step"]
