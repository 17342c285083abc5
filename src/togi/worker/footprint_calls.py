"""The calls that run, predict or fit a subject in a child: what is asked, what is answered. No torch."""

from __future__ import annotations

from togi.footprint.account.record import Account
from togi.footprint.fit.result import FitResult
from togi.footprint.prediction.record import Prediction
from togi.footprint.requests import FitRequest, PredictRequest, StepRequest
from togi.worker.call import ChildCall

ACCOUNT = ChildCall(
    function="togi.footprint.in_child:account",
    request=StepRequest,
    answer=Account,
    purpose="run to account for its memory",
)
PREDICT = ChildCall(
    function="togi.footprint.in_child:predict",
    request=PredictRequest,
    answer=Prediction,
    purpose="run on tensors without values to predict its memory",
)
FIT = ChildCall(
    function="togi.footprint.in_child:fit",
    request=FitRequest,
    answer=FitResult,
    purpose="fitted into memory",
    keeps_memory=False,
    late="If it needs so long, give a longer --time-limit (time_limit_s).",
)
"""Of a training step, or with ``train=False`` of an inference pass."""
