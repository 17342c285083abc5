"""``togi memory``: where the memory of a run goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from togi.cli.options import SIZE, Device, Json, Seed

if TYPE_CHECKING:
    from togi.footprint.account.record import Account

KIND = "account"


def memory(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="A locator: timm:resnet50, file.py:factory, ...")],
    train: Annotated[bool, typer.Option("--train", help="A training step instead of inference.")] = False,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="With --train: none, sgd, momentum, adam, adamw.")
    ] = "none",
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Replace the samples' batch size.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="bf16|fp16|fp32", help="Cast the model.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write an offline HTML file with pictures.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE.json", help="An earlier --json: say what changed since."),
    ] = None,
    fail_over: Annotated[
        int | None,
        typer.Option("--fail-over", metavar="SIZE", parser=SIZE, help="Exit with 1 when the peak is above it."),
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Do not run it: predict. Also where --device cuda is not here.")
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Predict for the module under torch.compile (on the CPU).")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option("--memory", metavar="SIZE", parser=SIZE, help="Predict the largest batch that fits."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --report replace any file.")] = False,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Run once and say who owns the memory at the peak: by category, module, line; what autograd keeps; what to delete.

    SUBJECT may also be a CUDA memory snapshot (FILE.pickle): it is read, whatever its size, and nothing in it is run.
    Exit code 1 when the peak is above --fail-over.
    """
    from togi import api
    from togi.cli.memory_prediction import memory_of_prediction, must_predict
    from togi.cli.memory_snapshot import memory_of_snapshot
    from togi.cli.output import check_report_path, write_html
    from togi.footprint.snapshot import is_snapshot

    if is_snapshot(subject):
        run_only = {"--train": train, "--optimizer": optimizer != "none", "--batch": batch is not None}
        run_only |= {"--dtype": dtype is not None, "--against": against is not None, "--device": device != "cpu"}
        run_only |= {"--predict": predict, "--compile": compile, "--memory": limit is not None}
        return memory_of_snapshot(
            subject, report=report, force=force, fail_over=fail_over, json=json, meaningless=run_only
        )
    if must_predict(predict or compile, limit, device):
        return memory_of_prediction(
            subject,
            options={"train": train, "optimizer": optimizer, "batch": batch, "dtype": dtype, "compile": compile},
            device=device,
            limit=limit,
            seed=seed,
            fail_over=fail_over,
            json=json,
            meaningless={"--report": report is not None, "--against": against is not None},
        )
    before = _read(against) if against is not None else None
    if report is not None:
        check_report_path(report, force)
    found = api.memory(subject, train=train, optimizer=optimizer, batch=batch, dtype=dtype, device=device, seed=seed)
    if report is not None:
        from togi.render.html import account_html

        write_html(account_html(found), report)
        typer.echo(f"report: {report}", err=True)
    _show(found, before, json)
    return _gate(found, fail_over)


def _show(found: Account, before: Account | None, json: bool) -> None:
    from rich.console import Group
    from rich.text import Text

    from togi.cli.output import print_json, print_text, stdout
    from togi.render.memory_text import account_change, account_text, change_text

    change = account_change(before, found) if before is not None else None
    if json:
        changed = {"change": change.model_dump(mode="json")} if change else {}
        print_json({"kind": KIND, **found.model_dump(mode="json"), **changed})
    else:
        text = account_text(found)
        print_text(stdout(), Group(text, Text(), change_text(change)) if change else text)


def _gate(found: Account, fail_over: int | None) -> int:
    from togi.core.quantities import size

    if fail_over is None or found.peak_bytes <= fail_over:
        return 0
    typer.echo(f"togi memory: the peak of {size(found.peak_bytes)} is above --fail-over {size(fail_over)}", err=True)
    return 1


def _read(path: Path) -> Account:
    """What an earlier ``--json`` wrote. Raises TogiError for anything else."""
    import json

    from pydantic import ValidationError

    from togi.core.errors import TogiError
    from togi.footprint.account.record import Account

    try:
        document = json.loads(path.read_text())
        document.pop("change", None)
        if document.pop("kind") != KIND:
            raise KeyError("kind")
        return Account.model_validate(document)
    except OSError as error:
        raise TogiError(f"--against {path}: {error.strerror}. 'togi memory SUBJECT --json > FILE' writes one") from None
    except (ValueError, KeyError, AttributeError, ValidationError):
        raise TogiError(
            f"--against {path} is no account of this version: 'togi memory SUBJECT --json > FILE' writes one"
        ) from None
