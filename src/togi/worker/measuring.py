"""A contender as it is measured: on which samples, by how many callers, from the host or on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypedDict

from togi.core.callers import Callers
from togi.core.records import Footprint
from togi.measure import GivenAs, Turn, Warmup, measure_footprint, take_turn, warm
from togi.subject.inputs import Inputs, given_anew
from togi.subject.nested import tensors_in
from togi.worker.contender import Contender


class _CalledBy(TypedDict):
    callers: Callers | None
    given_as: GivenAs | None


class Measuring:
    """The warm-up, the turns and the memory of one contender."""

    def __init__(
        self,
        contender: Contender,
        samples: tuple[Inputs, ...],
        device: str,
        callers: Callers | None = None,
        *,
        from_host: bool = False,
        inputs_change: bool = False,
    ) -> None:
        """``from_host``: a turn's calls have their inputs and results in host memory. ``inputs_change``: the original's
        write into their arguments."""
        self._anew = given_anew() if inputs_change else None
        goes_on = contender.given_as if callers is None else None  # from its last answer, which is one caller's
        self._given_as = goes_on or self._anew
        self._contender = contender
        self._samples = samples
        self._device = device
        self._callers = callers
        self.call: Callable[..., Any] = self._call_from_host if from_host else contender.call
        """What a turn calls, with the samples."""
        self.samples = tuple(sample.to("cpu") for sample in samples) if from_host else samples

    @property
    def _called_by(self) -> _CalledBy:
        return {"callers": self._callers, "given_as": self._given_as}

    def warm(self, limit_s: float | None) -> Warmup:
        run = functools.partial(warm, self.call, self.samples, device=self._device, **self._called_by)
        return run() if limit_s is None else run(limit_s=limit_s)

    def turn(self, passes: int) -> Turn:
        return take_turn(self.call, self.samples, passes, device=self._device, **self._called_by)

    def footprint(self) -> Footprint:
        alone = self._callers is None
        return measure_footprint(
            self._contender.call if alone else self._call_of_each,
            self._samples,
            self._contender.mark,
            held_bytes=self._contender.held_bytes,
            device=self._device,
            exact=alone and self._contender.allocates_with_torch,
            given_as=self._anew,
        )

    def _call_from_host(self, *args: Any, **kwargs: Any) -> list[Any]:
        on_device = Inputs(args, kwargs).to(self._device)
        return [tensor.cpu() for tensor in tensors_in(self._contender.call(*on_device.args, **on_device.kwargs))]

    def _call_of_each(self, *args: Any, **kwargs: Any) -> None:
        """The same call of all callers at once."""
        assert self._callers is not None
        given = [(args, kwargs)] * self._callers.count
        if self._anew is not None:
            given = [self._anew(args, kwargs) for _ in given]
        self._callers.answer(lambda number: self._contender.call(*given[number][0], **given[number][1]), len(given))
