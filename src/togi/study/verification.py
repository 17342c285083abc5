"""``togi verify``: an artifact proven again on this machine, next to the original that it was made of."""

from __future__ import annotations

from pathlib import Path

from togi.artifact.manifest import Manifest, check_files, read_manifest
from togi.artifact.proven_here import artifact_lacks, remember
from togi.artifact.signing import Trusted
from togi.core.choices import Objective
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.permits import Permit, permitted
from togi.core.quantities import bounds, percent, times
from togi.core.records import Interval, Noise, Outcome
from togi.decide.faithful import accept, is_tie
from togi.decide.faster import BETWEEN_PROCESSES, MARGIN, PROCESS_BIAS, beyond_disturbance, change
from togi.decide.gate import Answer, slower_than
from togi.decide.paired import said
from togi.measure import usable, why_unusable
from togi.study.bench import run_bench
from togi.study.comparison import Verification
from togi.study.contestants import Contestant
from togi.study.progress import Progress
from togi.subject.locator import check_locator, parse
from togi.techniques import is_exact

_SAID = {Answer.PASSED: "Proven", Answer.FAILED: "Not proven", Answer.UNDECIDED: "Undecided"}
_LONGER = "Repeat it when the machine is quiet, or give a longer --time-limit"


def verify_artifact(
    artifact: Path,
    subject: str | None,
    *,
    seed: int,
    time_limit_s: float | None,
    max_error: float | None,
    max_drop: float | None,
    data: str | None = None,
    metric: str | None = None,
    trusted: Trusted | None,
    progress: Progress,
    native: bool = True,
) -> Verification:
    """Load the artifact in a fresh process, verify it against the original and measure both in turns.

    Args:
        subject: the locator of the original; None: the one that the artifact was made of, which must be a model of a
            library, unless ``trusted`` is given: an artifact does not decide which code is run.
        max_error, max_drop: bounds on an approximate artifact; None: those that it was made with.
        data: locator of the validation data of an artifact that was judged on some.
        metric: locator of the function by which it was judged, if it was one.
        trusted: public keys, one of which has to have signed it; None: it need not be signed.
        native: it may be run by an engine whose files are a program.

    Raises ArtifactError (it cannot be loaded by anybody) and SubjectError (no original to compare with).
    """
    manifest = read_manifest(artifact, trusted)
    check_files(artifact, manifest)
    locator = _original(artifact, manifest, signed=trusted is not None) if subject is None else subject
    check_locator(locator)
    judging = _judging(artifact, manifest, max_drop, data, metric)
    comparison = run_bench(
        [locator, str(artifact)],
        device=manifest.facts.device,
        seed=seed,
        time_limit_s=time_limit_s,
        progress=progress,
        callers=manifest.facts.callers,
        from_host=manifest.objective is Objective.END_TO_END,
        native=native,
        checked={str(artifact): manifest},
        unproven=True,
        judging=judging,
        data=data or "",
    )
    contestants = {contestant.name: contestant for contestant in comparison.contestants}
    original, tuned = contestants[locator], contestants[str(artifact)]
    if original.outcome is not Outcome.OK:
        raise SubjectError(f"{locator} cannot be run, so nothing can be compared with it: {original.reason}")
    outcome, reason = _right(
        manifest,
        tuned,
        max_error=manifest.max_error if max_error is None else max_error,
        judging=judging,
    )
    proof = manifest.proof.measured
    before = None if proof is None else proof.speedup_x
    if outcome is not Outcome.OK:
        answer, verdict = Answer.FAILED, reason
    elif manifest.objective is Objective.FIRST_CALL:
        answer = Answer.PASSED
        verdict = "it is right (how soon it gives its first answer is measured by 'togi tune' alone)"
    else:
        answer, verdict = _fast(tuned.speedup_x, before, comparison.noise)
    verdict += _of_other_data(manifest, tuned) + _not_asked(manifest, judging, data, metric)
    if (lacking := artifact_lacks(artifact, manifest)) and answer is not Answer.UNDECIDED:
        remember(manifest, proven=answer is Answer.PASSED)
        if answer is Answer.PASSED:
            verdict += f". This processor lacks {lacking}: from now on togi.load uses it here all the same"
    return Verification(
        artifact=str(artifact),
        subject=locator,
        answer=answer,
        outcome=outcome,
        verdict=f"{_SAID[answer]}: {verdict}.",
        proven_speedup_x=before,
        takes=tuple(manifest.signature.conditions_in_words()),
        comparison=comparison,
    )


def _judging(
    artifact: Path, manifest: Manifest, max_drop: float | None, data: str | None, metric: str | None = None
) -> Judging | None:
    """By what the artifact is judged here. Raises SubjectError where that needs data or a metric which nobody named,
    and TogiError for a ``max_drop`` that allows everything."""
    if _held_to_rounding(manifest):
        return None
    judging = manifest.judging
    if judging is None and manifest.max_drop is not None:
        judging = Judging(max_drop=manifest.max_drop)
    if max_drop is not None:
        judging = Judging(max_drop=max_drop) if judging is None else judging.model_copy(update={"max_drop": max_drop})
        judging.check(f"max_drop={max_drop:g}")
    if judging is not None and judging.on_data and data is None:
        raise SubjectError(
            f"{artifact} was accepted for its {judging.measure} on validation data, which it does not hold. Name them: "
            "--data FILE:function"
        )
    return None if judging is None else _with_metric(artifact, judging, metric)


def _with_metric(artifact: Path, judging: Judging, metric: str | None) -> Judging:
    """With the function that was named for it: no program is run because an artifact names it."""
    if metric is not None and not (judging.on_data and judging.by_own_metric):
        accepted = judging.measure or "its subject's metric on the samples"
        raise SubjectError(
            f"{artifact} was accepted for {accepted}, and --metric {metric} is another: leave it out, or tune again by "
            "it"
        )
    if judging.metric and metric is None:
        raise SubjectError(
            f"{artifact} was accepted for what {judging.metric} says of it, which is a program, and no program is run "
            f"because an artifact names it. If it is yours, name it: --metric {judging.metric}"
        )
    return judging if metric is None else judging.model_copy(update={"metric": metric})


def _not_asked(manifest: Manifest, judging: Judging | None, data: str | None, metric: str | None) -> str:
    """That the data and the metric which were named judged nothing, in words that follow the verdict. Whoever names
    them for each artifact need not know how it was accepted."""
    if (data is None and metric is None) or (judging is not None and judging.on_data):
        return ""
    named = "validation data" if data is not None else "metric"
    if _held_to_rounding(manifest):
        why = "it is exact, and may differ by rounding alone"
    elif judging is None:
        why = "it was accepted for its error on the samples"
    else:
        why = "it was accepted for its subject's metric on the samples"
    return f". The {named} judged nothing: {why}"


def _of_other_data(manifest: Manifest, tuned: Contestant) -> str:
    """Whether it was judged on other data than when it was accepted, in words that follow the verdict."""
    then, now = (error and error.accuracy for error in (manifest.proof.error, tuned.error))
    if not then or not now:
        return ""
    changed = ""
    if then.metric is not None and now.metric is not None and then.metric.code != now.metric.code:
        changed = ". The metric's code is not that by which it was accepted, so that this is another test"
    if then.data in ("", now.data):
        return changed
    was = said(then.drop, 0 if manifest.judging is None else manifest.judging.max_drop, points=then.measure.of_answers)
    return (
        f"{changed}. The validation data are not those that it was accepted on (sha256 {then.data[:12]} then, "
        f"{now.data[:12]} now), so that this is another test. Then: {was}"
    )


_CODE = frozenset({"file", "package", "torchscript", "artifact", "lightning", "ultralytics"})
"""Forms of subjects that are programs: a person names them, or has trusted who did."""

_WITH_CODE = frozenset({"hf", "transformers", "sentence-transformers", "diffusers"})
"""Those whose own code is run with a permit, which is for what the person names."""


def _original(artifact: Path, manifest: Manifest, *, signed: bool) -> str:
    """The locator in the manifest."""
    named = manifest.subject
    try:
        form = parse(named).form
        is_code = form in _CODE or (form in _WITH_CODE and permitted(Permit.REMOTE_CODE))
        if signed or not is_code:
            check_locator(named)
    except TogiError as error:
        raise SubjectError(
            f"{artifact} was made of '{named}', which cannot be loaded here ({error}), and an artifact "
            "holds neither the original nor its inputs. Give what it is to be compared with: --subject file.py:factory"
        ) from None
    if is_code and not signed:
        raise SubjectError(
            f"{artifact} says that it was made of {named!r}, which is a program, and no program is run because an "
            f"artifact names it. If it is yours, name it: togi verify {artifact} --subject {named}"
        )
    return named


def _right(
    manifest: Manifest, tuned: Contestant, *, max_error: float | None, judging: Judging | None
) -> tuple[Outcome, str]:
    if tuned.outcome is not Outcome.OK:
        return tuned.outcome, f"it could not be run here ({tuned.outcome.value}: {tuned.reason.rstrip('.')})"
    if tuned.error is None:
        return Outcome.FAILED, "it was not verified"
    own = None if judging is None or judging.on_data else judging.max_drop
    exact = _held_to_rounding(manifest)
    outcome, reason = accept(tuned.error, exact=exact, max_error=max_error, max_drop=own, judging=judging)
    return outcome, reason if outcome is Outcome.OK else f"it is not right here: {reason}"


def _held_to_rounding(manifest: Manifest) -> bool:
    """An exact recipe, unless it was accepted with a larger error when it was made (``--allow`` named it)."""
    error = manifest.proof.error
    return is_exact(manifest.recipe) and (error is None or error.shown_right or is_tie(error))


def _fast(now: Interval | None, before: Interval | None, noise: Noise) -> tuple[Answer, str]:
    """What was faster when it was made must be so here; what was chosen for its memory must not be slower, or not
    slower than it was."""
    if now is None:
        return Answer.UNDECIDED, f"it is right, but its speed could not be measured in the time. {_LONGER}"
    speed = f"{times(now.median)} the speed of the original ({bounds(now)})"
    was = f", {times(before.median)} when it was made" if before is not None else ""
    if before is not None and BETWEEN_PROCESSES.faster(before):
        answer, finding = _as_fast(now)
    elif before is not None and BETWEEN_PROCESSES.slower(before):
        answer, finding = _not_slower(change(now, before), "than it was", comparisons=2)
    else:
        answer, finding = _not_slower(now, "than the original")
    if not usable(noise) and not (answer is Answer.FAILED and beyond_disturbance(now)):
        answer = Answer.UNDECIDED
        finding = f"but the machine was too disturbed to judge its speed ({why_unusable(noise)})"
    doubt = f". {_LONGER}" if answer is Answer.UNDECIDED else ""
    again = ". Tune again on this machine" if answer is Answer.FAILED else ""
    return answer, f"it is right, {finding}: {speed}{was}{again}{doubt}"


def _as_fast(now: Interval) -> tuple[Answer, str]:
    if BETWEEN_PROCESSES.faster(now):
        return Answer.PASSED, "and faster"
    if BETWEEN_PROCESSES.at_most_same(now):
        return Answer.FAILED, "but no longer faster"
    return Answer.UNDECIDED, "but the figures do not show whether it is faster"


def _not_slower(now: Interval, than: str, *, comparisons: int = 1) -> tuple[Answer, str]:
    answer = slower_than(MARGIN, now, comparisons=comparisons)
    forgiven = MARGIN + PROCESS_BIAS * comparisons
    slower = now.median < 1 - MARGIN
    by_more = f" by more than the {percent(forgiven)} that measurements may differ by" if slower else ""
    findings = {
        Answer.PASSED: f"and not slower {than}{by_more}",
        Answer.FAILED: f"but slower {than}",
        Answer.UNDECIDED: f"but the figures do not show whether it is slower {than}",
    }
    return answer, findings[answer]
