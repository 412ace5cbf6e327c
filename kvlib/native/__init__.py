"""C functions for decoding on a CPU, where PyTorch's parts leave time between them.

Float32 on a CPU only. Each has its counterpart in PyTorch, which it is compared with; `why_not` says why
they are unavailable on a machine.
"""

from kvlib.native.build import NotBuilt, why_not
from kvlib.native.calls import native_attention, read_rows

__all__ = ["NotBuilt", "native_attention", "read_rows", "why_not"]
