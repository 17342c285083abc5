"""The functions behind ``togi.worker.footprint_calls``: each runs in a child, on the subject."""

from __future__ import annotations

from typing import Any

from togi.core.errors import FitError
from togi.core.quantities import first_line
from togi.core.report import Report
from togi.footprint.account.record import Account
from togi.footprint.account.watched import account_of
from togi.footprint.fit.inference.planner import fit_inference
from togi.footprint.fit.result import FitResult
from togi.footprint.fit.training.fit import fit_training
from togi.footprint.prediction.predict import prediction_of
from togi.footprint.prediction.record import Prediction
from togi.footprint.requests import FitRequest, PredictRequest, StepRequest
from togi.footprint.step import Step, make_step
from togi.measure.memory import is_out_of_memory
from togi.subject.inputs import Subject


def account(subject: Subject, request: StepRequest) -> Account:
    return account_of(make_step(subject, **_step_options(request)), device=request.device)


def predict(subject: Subject, request: PredictRequest) -> Prediction:
    options = _step_options(request) | {"device": request.device.partition(":")[0]}
    return prediction_of(subject, memory_bytes=request.memory_bytes, compile=request.compile, **options)


def fit(subject: Subject, request: FitRequest, report: Report) -> FitResult:
    step = make_step(subject, **_step_options(request))
    if step.train_step is not None:
        raise FitError(
            "a plan is proven by the gradients of step(module, sample) -> loss, and this subject has a train_step, "
            "which changes them before they can be compared. Give togi fit a subject with step= (the forward pass and "
            "the loss) and the same optimizer=; plan.apply(module) then serves the loop as it is"
        )
    try:
        return _fit(step, request, report)
    except Exception as error:  # of torch's allocators, each in words of its own
        if not is_out_of_memory(error):
            raise
        whole = "togi runs the unmodified step while it plans" if request.train else "togi runs the whole pass"
        raise FitError(
            f"{request.device} has not enough memory to plan: {first_line(error)}. {whole}, so plan where that fits: "
            "with a smaller batch, or on a machine with more memory. 'togi memory SUBJECT --predict' says what it "
            "needs, without running it"
        ) from error


def _fit(step: Step, request: FitRequest, report: Report) -> FitResult:
    if not request.train:
        return fit_inference(
            step,
            request.budget_bytes,
            device=request.device,
            seed=request.seed,
            time_limit_s=request.time_limit_s,
            report=report,
        )
    return fit_training(
        step,
        request.budget_bytes,
        allow_approximate=request.allow_approximate,
        device=request.device,
        seed=request.seed,
        time_limit_s=request.time_limit_s,
        report=report,
    )


def _step_options(request: StepRequest) -> dict[str, Any]:
    """The arguments of ``make_step``, which a request names alike."""
    return {name: getattr(request, name) for name in StepRequest.model_fields}
