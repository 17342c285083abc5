"""The check of a contender against the truth in the folder of its subject."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.callers import Callers
from togi.core.errors import Refused
from togi.core.judging import Judging
from togi.core.quantities import first_line
from togi.core.records import ErrorReport
from togi.decide.faithful import limit_units
from togi.measure import callers_on, wait_for
from togi.subject.inputs import Inputs
from togi.subject.validation import Validation
from togi.verify.accuracy import judged, known_outputs
from togi.verify.derived_inputs import variants
from togi.verify.leaves import fresh
from togi.verify.metric import Metric
from togi.verify.own_metric import CannotScore, KnownScores, OwnMetric
from togi.verify.truth import Truth
from togi.verify.verdict import verify, wrong_at_once
from togi.worker.contender import Contender
from togi.worker.job import TRUTH_FOLDER
from togi.worker.protocol import AskedAtOnce


class TrialCheck:
    """The verification of one contender: when it is built, when several callers come, and of what it saved."""

    def __init__(self, contender: Contender, *, exact: bool) -> None:
        """``exact``: no technique of the recipe is approximate."""
        self._contender = contender
        self._trial = contender.trial
        self._exact = exact
        self.report: ErrorReport
        """Once it is verified."""
        self.first_call_ms: float | None = None
        """Of the call that verification began with: what compiles at its first call did it there."""

    def verify(self, metric: Metric | None, callers: Callers | None) -> ErrorReport:
        call = FirstCall(self._contender.call, self._trial.config.device)
        if not self._trial.surveyed.facts.buffers_change:
            # Before the memory that verification takes, as where an artifact is used: what an engine allocates at its
            # first call stays, and where that lies made an OpenVINO model 2 % slower in every process that verified it.
            inputs_of_call = fresh(self._contender.samples[0])  # objects too: verification gives them as they were
            call(*inputs_of_call.args, **inputs_of_call.kwargs)
        truth, inputs = self.known()
        report = verify(
            call,
            truth,
            inputs,
            self._trial.surveyed.signature,
            seed=self._trial.config.seed,
            exact=self._exact,
            metric=metric,
            callers=callers,
        )
        self.first_call_ms = call.ms
        self.report = self._contender.settle_ties(report, truth, self._exact)
        return self.report

    def judged(
        self, report: ErrorReport, validation: Validation, judging: Judging, *, confirmation: bool
    ) -> ErrorReport:
        """The report of an approximate contender, with how it does on one half of the validation data."""
        config, folder = self._trial.config, self._trial.folder / TRUTH_FOLDER
        known: Sequence[Tensor] | KnownScores
        others: Mapping[str, Sequence[Tensor]] = {}
        if config.metric_on_data:
            own = OwnMetric(self._trial.whole.metric, validation, seed=config.seed, device=config.device)
            known = own.known_scores(folder, judging.metric, self._trial.whole.better)
        else:
            known, others = known_outputs(folder, validation)
        try:
            accuracy = judged(
                self._contender.call,
                validation,
                known,
                judging,
                confirmation=confirmation,
                seed=config.seed,
                device=config.device,
                others=others,
            )
        except CannotScore as problem:
            return report.model_copy(update={"metric_problem": str(problem)})
        return report.model_copy(update={"accuracy": accuracy})

    def known(self) -> tuple[Truth, list[Inputs]]:
        """The truth, and the inputs it is of: the samples, and the derived inputs that the contender takes."""
        signature = self._trial.surveyed.signature
        truth = self._truth()
        inputs = variants(self._contender.samples, signature, self._trial.config.seed)
        derived = range(len(self._contender.samples), len(inputs))
        return truth.without([i for i in derived if not self._contender.takes(inputs[i], signature)]), inputs

    def _truth(self) -> Truth:
        return Truth.load(self._trial.folder / TRUTH_FOLDER)

    def verify_stored(self, call: Callable[..., Any]) -> None:
        """Verify what was saved. Raises Refused if it is wrong on the samples."""
        truth, inputs = self.known()
        signature, seed = self._trial.surveyed.signature, self._trial.config.seed
        report = verify(call, truth, inputs, signature, seed=seed, exact=self._exact, known=self.report.leaves)
        if report.problems or not report.faithful:
            raise Refused(next(iter(report.problems), f"its error is {report.units:,.0f} x eager's own"))

    @property
    def varying(self) -> tuple[str, ...]:
        """As in ``TruthFacts``."""
        return self._truth().facts.varying

    def lasting_units(self) -> float:
        """The limit for what is saved: what an approximate recipe was seen to need, twice."""
        limit = limit_units(exact=self._exact, tf32_units=self._truth().facts.tf32_units)
        return max(limit, 2 * self.report.units)

    def asked_at_once(self, count: int) -> AskedAtOnce:
        """Let so many callers ask at once. An error is only noted: nobody takes it for an answer."""
        if assigned := self._contender.assigned_by_torchscript():
            return AskedAtOnce(
                note=f"one caller at a time: each call of its TorchScript assigns {assigned[0]}, and two at once would "
                "end the process"
            )
        truth, inputs = self.known()
        callers = callers_on(count, self._trial.config.device)
        ask = functools.partial(
            wrong_at_once,
            truth=truth,
            inputs=inputs,
            signature=self._trial.surveyed.signature,
            report=self.report,
            seed=self._trial.config.seed,
            exact=self._exact,
            callers=callers,
        )
        try:
            problems = ask(self._contender.call)
            if problems and self._original_errs(ask):
                return AskedAtOnce(note="the original itself gives wrong answers when several call at once")
            return AskedAtOnce(problems=problems)
        except Exception as error:  # foreign code: an engine's
            return AskedAtOnce(note=f"it fails when {count} call at once: {first_line(error)}")
        finally:
            callers.close()

    def _original_errs(self, ask: Callable[[Callable[..., Any]], Any]) -> bool:
        """Ask the original in the same way: is it wrong, or does it fail?"""
        with self._contender.original() as original:
            try:
                return bool(ask(torch.no_grad()(original)))
            except Exception:  # foreign code: the user's
                return True


class FirstCall:
    """Calls through, and keeps how long the first one took, on a device until it was done. ``ms``: None before."""

    def __init__(self, call: Callable[..., Any], device: str) -> None:
        self.call, self.device = call, device
        self.ms: float | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.ms is not None:
            return self.call(*args, **kwargs)
        began = time.perf_counter()
        output = self.call(*args, **kwargs)
        wait_for(self.device)()
        self.ms = (time.perf_counter() - began) * 1e3
        return output
