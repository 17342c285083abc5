"""What is asked of a subject's memory in a child: to run it, to predict it, to fit it. No torch.

``togi.worker.footprint_calls`` has the calls.
"""

from __future__ import annotations

from typing import Any

from togi.core.device import parse_device
from togi.core.errors import TogiError, UnknownNameError, nearest
from togi.core.records import Request

OPTIMIZERS = ("none", "sgd", "momentum", "adam", "adamw")
DTYPES = ("fp32", "bf16", "fp16")


class StepRequest(Request):
    """One inference pass, or one training step with its optimizer. Raises TogiError for what does not go together."""

    train: bool = False
    optimizer: str = "none"
    batch: int | None = None
    """Replaces the batch size of the first sample."""
    dtype: str | None = None
    """Casts module and inputs: ``fp32``, ``bf16`` or ``fp16``."""
    device: str = "cpu"

    def model_post_init(self, context: Any) -> None:
        parse_device(self.device)
        _check_name("optimizer", self.optimizer, OPTIMIZERS)
        if self.dtype is not None:
            _check_name("dtype", self.dtype, DTYPES)
        if self.optimizer != "none" and not self.train:
            raise TogiError(
                f"optimizer {self.optimizer} has no part in inference: add --train (train=True), or leave it out"
            )
        if self.batch is not None and self.batch < 1:
            raise TogiError(f"a batch of {self.batch} is not a batch: give 1 or more")


class PredictRequest(StepRequest):
    memory_bytes: int | None = None
    """Also find the largest batch that fits into this."""
    compile: bool = False
    """As ``torch.compile`` with its defaults would run the module."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.compile and self.device != "cpu":
            raise TogiError(
                f"a compiled run is predicted for the CPU only, and the device is {self.device}: what is fused for a "
                "GPU, and so what is kept, is another program, which cannot be planned without that device. Leave "
                "--compile (compile=True) out for a prediction of the uncompiled model"
            )


class FitRequest(StepRequest):
    budget_bytes: int
    """The whole peak of the step."""
    allow_approximate: bool = False
    time_limit_s: float | None = None
    """None: a minute, and more where a step takes long."""
    seed: int = 0


def _check_name(kind: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UnknownNameError(
            f"there is no {kind} '{name}' here{nearest(name, known) or '.'} Known: {', '.join(known)}."
        )
