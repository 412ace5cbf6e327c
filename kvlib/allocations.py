"""Watch what a computation puts into new memory: the difference between a view and a copy."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocation(NamedTuple):
    """Name one result that did not lie in memory its operation was given."""

    operation: str
    shape: tuple[int, ...]
    nbytes: int


class Allocations(TorchDispatchMode):
    """Note, inside a `with` block, every operation that runs and what it writes to new memory.

    `made` lists the new tensors in order; a view of an input is none. `operations` names everything
    that ran, views too. What a kernel uses inside and gives back is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Allocation] = []
        self.operations: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = str(func).split(".")[1]
        self.operations.append(name)
        held = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.numel() and _address(x) not in held:
                self.made.append(Allocation(name, tuple(x.shape), x.untyped_storage().nbytes()))
        return out

    @property
    def nbytes(self) -> int:
        """Sum the bytes of all new tensors."""
        return sum(new.nbytes for new in self.made)

    @property
    def largest(self) -> Allocation | None:
        """Return the largest new tensor, the first of equals; None where there is none."""
        return max(self.made, key=lambda new: new.nbytes, default=None)


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
