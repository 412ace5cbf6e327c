"""Watch what a computation puts into new memory: the difference between a view and a copy."""

from __future__ import annotations

import weakref
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
    that ran, views too. `peak` is the most bytes that new tensors held at one moment. What a kernel
    uses inside and gives back is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Allocation] = []
        self.operations: list[str] = []
        self.peak = 0
        self._alive: dict[int, tuple[int, set[int]]] = {}  # address -> bytes, tensors that use it
        self._live_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = str(func).split(".")[1]
        self.operations.append(name)
        held = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for x in tree_leaves(out):
            if not isinstance(x, Tensor) or not x.numel():
                continue
            if _address(x) not in held:
                self.made.append(Allocation(name, tuple(x.shape), x.untyped_storage().nbytes()))
                self._hold(x)
            elif _address(x) in self._alive:
                self._hold(x)  # a view keeps the memory of a tensor that may itself be gone
        return out

    def _hold(self, x: Tensor) -> None:
        """Count the memory of a new tensor, or of a view of one, until the last of them is gone."""
        address, size = _address(x), x.untyped_storage().nbytes()
        if address not in self._alive:
            self._alive[address] = size, set()
            self._live_bytes += size
            self.peak = max(self.peak, self._live_bytes)
        users = self._alive[address][1]
        if id(x) not in users:
            users.add(id(x))
            weakref.finalize(x, self._let_go, address, id(x)).atexit = False

    def _let_go(self, address: int, user: int) -> None:
        size, users = self._alive[address]
        users.discard(user)
        if not users:
            del self._alive[address]
            self._live_bytes -= size

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
