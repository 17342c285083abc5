"""``togi memory``: where the memory of a run goes, what a run would need (``--predict``), and what a snapshot holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from togi.cli.options import (
    SIZE,
    Batch,
    Device,
    Dtype,
    ExitUndecided,
    Json,
    Junit,
    Optimizer,
    Seed,
    with_permits,
)
from togi.cli.output import say
from togi.core.errors import TogiError

if TYPE_CHECKING:
    from togi.decide.gate import Case
    from togi.footprint.account.record import Account
    from togi.footprint.prediction.record import Prediction

ACCOUNT, PREDICTION, SNAPSHOT = "account", "prediction", "snapshot"
"""Kinds of documents."""


@with_permits
def memory(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="A locator: timm:resnet50, file.py:factory, ...")],
    train: Annotated[bool, typer.Option("--train", help="A training step instead of inference.")] = False,
    optimizer: Optimizer = "none",
    batch: Batch = None,
    dtype: Dtype = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write an offline HTML file with pictures.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE.json", help="An earlier --json: report what changed."),
    ] = None,
    fail_over: Annotated[
        int | None,
        typer.Option("--fail-over", metavar="SIZE", parser=SIZE, help="Exit with 1 when the peak is above it."),
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Predict, do not run it; done anyway if the device is not here.")
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Predict for the module under torch.compile (on the CPU).")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option("--memory", metavar="SIZE", parser=SIZE, help="Predict the largest batch that fits."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --report replace any file.")] = False,
    exit_undecided: ExitUndecided = 1,
    junit: Junit = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Run once and say who owns the memory at the peak: by category, module, line; what autograd keeps; what to delete.

    SUBJECT may also be a CUDA memory snapshot (FILE.pickle): it is read, whatever its size, and nothing in it is run.
    Exit code 1 when the peak is above --fail-over; --exit-undecided when a prediction lies on both
    sides of it.
    """
    from togi import api
    from togi.cli.output import check_report_path, junit_report, write_whole
    from togi.footprint.snapshot import is_snapshot

    with junit_report(junit, "togi memory", subject, exit_undecided) as cases:
        if is_snapshot(subject):
            run_only = {"--train": train, "--optimizer": optimizer != "none", "--batch": batch is not None}
            run_only |= {"--dtype": dtype is not None, "--against": against is not None, "--device": device != "cpu"}
            run_only |= {"--predict": predict, "--compile": compile, "--memory": limit is not None}
            if given := _given(run_only):
                raise TogiError(
                    f"{subject} is a CUDA memory snapshot, which is read and not run: {given} would have no effect. "
                    "Leave it out; --report, --json, --junit and --fail-over work"
                )
            peak_bytes = _read_snapshot(subject, report=report, force=force, json=json)
            return _gate(cases, subject, (peak_bytes, peak_bytes), fail_over)
        if _must_predict(predict or compile, limit, device):
            if given := _given({"--report": report is not None, "--against": against is not None}):
                raise TogiError(
                    f"{given}: not for a prediction, which has no timeline and no lines to compare. Leave it out, "
                    "or run the model (without --predict and --memory, on a device that is here)"
                )
            prediction = api.predict_memory(
                subject,
                train=train,
                optimizer=optimizer,
                batch=batch,
                dtype=dtype,
                device=device,
                memory=limit,
                compile=compile,
                seed=seed,
            )
            _show_prediction(prediction, json)
            needed = (prediction.device_low_bytes, prediction.device_high_bytes)
            return _gate(cases, subject, needed, fail_over, exit_undecided)
        before = _read_account(against) if against is not None else None
        if report is not None:
            check_report_path(report, force)
        account = api.memory(
            subject, train=train, optimizer=optimizer, batch=batch, dtype=dtype, device=device, seed=seed
        )
        if report is not None:
            from togi.render.html import account_html

            write_whole(account_html(account), report)
            say(f"report: {report}")
        _show(account, before, json)
        return _gate(cases, subject, (account.peak_bytes, account.peak_bytes), fail_over)


def _given(options: Mapping[str, bool]) -> str:
    """The options that were given, with commas; empty where none was."""
    return ", ".join(option for option, is_given in options.items() if is_given)


def _show(account: Account, before: Account | None, json: bool) -> None:
    from rich.console import Group
    from rich.text import Text

    from togi.cli.output import print_json, print_text, stdout
    from togi.footprint.account.change import account_change
    from togi.render.memory_text import account_text, change_text

    change = account_change(before, account) if before is not None else None
    if json:
        changed = {"change": change.model_dump(mode="json")} if change else {}
        print_json({"kind": ACCOUNT, **account.model_dump(mode="json"), **changed})
    else:
        text = account_text(account)
        print_text(stdout(), Group(text, Text(), change_text(change)) if change else text)


def _gate(cases: list[Case], subject: str, needed: tuple[int, int], fail_over: int | None, undecided: int = 1) -> int:
    """The exit code. Adds a case that says so. ``needed``: the least and the most that the peak may be, in bytes."""
    from togi.core.quantities import size
    from togi.decide.gate import Answer, Case, below, exit_code

    answer = Answer.PASSED if fail_over is None else below(fail_over, *needed)
    equal = fail_over is not None and answer is not Answer.PASSED and size(fail_over) in map(size, needed)
    # rounded, it would be the limit that it exceeds
    shown: Callable[[float], str] = (lambda count: f"{count:,} bytes") if equal else size
    low, high = map(shown, needed)
    said = f"the peak of {high}" if low == high else f"the peak, {low} to {high},"
    if answer is not Answer.PASSED and fail_over is not None:
        limit = f"above --fail-over {shown(fail_over)}"
        failed = answer is Answer.FAILED
        said = f"{said} is {limit}" if failed else f"the figures do not show whether {said} is {limit}"
        say(f"togi memory: {said}")
    cases.append(Case(name=subject, said=said.rstrip(","), answer=answer))
    return exit_code(cases, undecided)


def _read_account(path: Path) -> Account:
    """Read what an earlier ``--json`` wrote. Raises TogiError for anything else."""
    import json

    from pydantic import ValidationError

    from togi.footprint.account.record import Account

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        document.pop("change", None)
        if document.pop("kind") != ACCOUNT:
            raise KeyError("kind")
        return Account.model_validate(document)
    except OSError as error:
        raise TogiError(f"--against {path}: {error.strerror}. 'togi memory SUBJECT --json > FILE' writes one") from None
    except (ValueError, KeyError, AttributeError, ValidationError):
        raise TogiError(
            f"--against {path} is not an account of this version: 'togi memory SUBJECT --json > FILE' writes one"
        ) from None


def _must_predict(predict: bool, limit: int | None, device: str) -> bool:
    """Whether a prediction was asked for, or the device is not here."""
    from togi.machine.describe import machine

    return predict or limit is not None or (device != "cpu" and machine(device).gpu is None)


def _show_prediction(prediction: Prediction, json: bool) -> None:
    from togi.cli.output import print_json, print_text, stdout
    from togi.render.memory_text import prediction_text

    if json:
        print_json(
            {
                "kind": PREDICTION,
                **prediction.model_dump(mode="json"),
                "device_high_bytes": prediction.device_high_bytes,
            }
        )
    else:
        print_text(stdout(), prediction_text(prediction))


def _read_snapshot(path: str, *, report: Path | None, force: bool, json: bool) -> int:
    """Show what it holds. Returns the peak in bytes."""
    from togi.cli.output import check_report_path, print_json, print_text, stdout, write_whole
    from togi.footprint.snapshot import snapshot_account
    from togi.render.snapshot_text import snapshot_text

    if report is not None:
        check_report_path(report, force)
    account = snapshot_account(path)
    if report is not None:
        from togi.render.html import snapshot_html

        write_whole(snapshot_html(account), report)
        say(f"report: {report}")
    if json:
        print_json({"kind": SNAPSHOT, **account.model_dump(mode="json")})
    else:
        print_text(stdout(), snapshot_text(account))
    return account.peak_bytes
