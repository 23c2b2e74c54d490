"""Generated CUDA kernels: the text (`chain`, `rows`, `boxes`), the compiler (`nvrtc`), and two
machines that run it (`device`, `shim`).
"""

from .kernel import Kernel, KernelTextError, Operand

__all__ = ["Kernel", "KernelTextError", "Operand"]
