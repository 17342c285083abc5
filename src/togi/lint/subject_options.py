"""How a subject is looked at; wrong names are refused here, before a child starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from togi.core.errors import UnknownNameError
from togi.lint.roofline.figures import check_dtype
from togi.lint.roofline.gpus import gpu

_RUN_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """How a subject is looked at. Raises UnknownNameError for a device or dtype that nothing is known of."""

    device: str = "cpu"
    """``cpu``, ``cuda[:N]``, or the name of a GPU that need not be here: costs are predicted for it."""
    dtype: str | None = None
    """Predict costs as if floating-point tensors were of this dtype."""
    measure: bool = False
    """Try the techniques that mend what was found, and say what they bring."""
    train: bool = False
    """A training step is meant; without one in the subject, a note says that a forward pass was watched."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self._runs_there:
            _check_gpu(self.device)
        if self.dtype is not None:
            check_dtype(self.dtype)

    @property
    def _runs_there(self) -> bool:
        return _RUN_DEVICE.fullmatch(self.device) is not None

    @property
    def runs_on(self) -> str:
        """A GPU that is only named is not there: the run itself happens on the CPU."""
        return self.device if self._runs_there else "cpu"


def _check_gpu(name: str) -> None:
    try:
        gpu(name)
    except UnknownNameError as error:
        raise UnknownNameError(f"device: {error} To run on a device, give cpu, cuda or cuda:N.") from None
