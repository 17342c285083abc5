"""The calls that run, predict or fit a subject in a child: what is asked, what is answered. No torch."""

from __future__ import annotations

from typing import Any

from togi.core.records import Record
from togi.footprint.account.record import Account
from togi.footprint.fit.result import FitResult
from togi.footprint.options import check_compile, check_options
from togi.footprint.prediction.record import Prediction
from togi.worker.call import ChildCall


class StepRequest(Record):
    """One inference pass, or one training step with its optimizer. Raises TogiError for what does not go together."""

    train: bool = False
    optimizer: str = "none"
    batch: int | None = None
    """Replaces the batch size of the first sample."""
    dtype: str | None = None
    """Casts module and inputs: ``fp32``, ``bf16`` or ``fp16``."""
    device: str = "cpu"

    def model_post_init(self, context: Any) -> None:
        check_options(train=self.train, optimizer=self.optimizer, batch=self.batch, dtype=self.dtype)


class PredictRequest(StepRequest):
    memory_bytes: int | None = None
    """Also find the largest batch that fits into this."""
    compile: bool = False
    """As ``torch.compile`` with its defaults would run the module."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        check_compile(self.compile, self.device)


class FitRequest(StepRequest):
    memory_bytes: int
    """The whole peak of the step."""
    allow_approximate: bool = False
    time_limit_s: float
    seed: int = 0


ACCOUNT = ChildCall(
    function="togi.footprint.in_child:account",
    request=StepRequest,
    answer=Account,
    purpose="run for its account of memory",
)
PREDICT = ChildCall(
    function="togi.footprint.in_child:predict", request=PredictRequest, answer=Prediction, purpose="predicted"
)
FIT = ChildCall(function="togi.footprint.in_child:fit", request=FitRequest, answer=FitResult, purpose="fitted")
"""Of a training step, or with ``train=False`` of an inference pass."""
