"""The cache of one sequence of calls, kept in an inference request of OpenVINO, and the tensors that it lends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from togi.core.records import Record
from togi.techniques.engine.programs.openvino import give
from togi.techniques.engine.programs.openvino_library import openvino
from togi.torch_internals.deferred import Deferred


class GrowingInput(Record):
    """An input that is returned with something behind it."""

    input: int
    output: int
    place: int
    """Of the output among those of the model, as it was when it returned the cache."""
    dim: int
    count: int
    """How much longer it is in that dimension."""

    @property
    def names(self) -> tuple[str, str]:
        """The names of the model's input and output. OpenVINO calls the variable by both together."""
        return f"input_{self.input}", f"output_{self.place}"


class CachePlace(NamedTuple):
    """The values of a deferred tensor: a part of a cache, as it was when it was so long."""

    cache: SequenceCache
    position: int
    length: int

    @property
    def lock(self) -> threading.RLock:
        return self.cache.lock

    def fetch(self) -> Tensor:
        return self.cache.fetch(self.position, self.length)


class SequenceCache:
    """An inference request with the cache of one sequence of calls in it. Its lock is held while it works.

    Only the tensors that it has lent hold it: once the last of them is gone, or has its values, its memory is free.
    """

    def __init__(self, compiled: Any, kept: Sequence[GrowingInput], rows: dict[Any, Any]) -> None:
        """``rows``: the input that says which of them go on, where there is one: always all."""
        self.request = compiled.create_infer_request()
        give(self.request, rows)
        self.kept = kept
        self.lock = threading.RLock()
        self.lengths: list[int] = []
        """Of what is in it; empty: nothing that anybody may go on with."""
        self.used = 0
        names = {state.name: state for state in self.request.query_state()}
        self._states = [names["".join(part.names)] for part in kept]
        self._lent: list[weakref.ref[Deferred]] = []
        self._returned = False
        """Its lengths are those of what it has lent last."""

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether it was these that it returned last."""
        places = [tensor.place if isinstance(tensor, Deferred) else None for tensor in tensors]
        return self._returned and places == self._places()

    def returned_last(self, place: CachePlace) -> bool:
        """Whether the values there are of what it returned last."""
        with self.lock:
            return self._returned and self.lengths[place.position] == place.length

    def _places(self) -> list[CachePlace]:
        return [CachePlace(self, position, length) for position, length in enumerate(self.lengths)]

    def take(self, tensors: Sequence[Tensor]) -> None:
        """Hold these from now on. Tensors that were returned fetch their values before."""
        for ref in self._lent:
            if (lent := ref()) is not None:
                lent.plain()
        self._lent, self._returned, self.lengths = [], False, []
        self.request.reset_state()
        for state, tensor in zip(self._states, tensors, strict=True):
            # by numpy, since threads of torch that were woken for a copy wait busily next to OpenVINO's
            state.state = openvino().Tensor(np.ascontiguousarray(tensor.detach().numpy()), shared_memory=True)
        self.lengths = [tensor.shape[part.dim] for part, tensor in zip(self.kept, tensors, strict=True)]

    def infer(self, feeds: dict[Any, Any]) -> Sequence[Any]:
        """One call; numpy arrays of the caller's own."""
        lengths, self.lengths, self._returned = self.lengths, [], False
        give(self.request, feeds)
        arrays: Sequence[Any] = self.request.infer(share_outputs=False).to_tuple()
        self.lengths = [length + part.count for part, length in zip(self.kept, lengths, strict=True)]
        self._lent = [ref for ref in self._lent if ref() is not None]
        return arrays

    def lend(self, likes: Sequence[Tensor]) -> list[Deferred]:
        """Tensors of what it holds now, like these but for their lengths."""
        lent: list[Deferred] = []
        for part, like, place in zip(self.kept, likes, self._places(), strict=True):
            sizes = like.shape
            lent.append(Deferred((*sizes[: part.dim], place.length, *sizes[part.dim + 1 :]), like.dtype, place))
        self._lent += map(weakref.ref, lent)
        self._returned = True
        return lent

    def fetch(self, position: int, length: int) -> Tensor:
        values = torch.from_numpy(self._states[position].state.data)
        return values.narrow(self.kept[position].dim, 0, length).clone(memory_format=torch.contiguous_format)
