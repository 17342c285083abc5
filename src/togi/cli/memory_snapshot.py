"""``togi memory FILE.pickle``: the account of a CUDA memory snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

KIND = "snapshot"


def memory_of_snapshot(
    path: str,
    *,
    report: Path | None,
    force: bool,
    fail_over: int | None,
    json: bool,
    meaningless: Mapping[str, bool],
) -> int:
    """``meaningless`` are options for a run, with whether they were given: a snapshot is read, not run."""
    from togi.cli.output import check_report_path, print_json, print_text, stdout, write_html
    from togi.footprint.snapshot import snapshot_account
    from togi.render.snapshot_text import snapshot_text

    _refuse(path, [name for name, given in meaningless.items() if given])
    if report is not None:
        check_report_path(report, force)
    found = snapshot_account(path)
    if report is not None:
        from togi.render.html import snapshot_html

        write_html(snapshot_html(found), report)
        typer.echo(f"report: {report}", err=True)
    if json:
        print_json({"kind": KIND, **found.model_dump(mode="json")})
    else:
        print_text(stdout(), snapshot_text(found))
    return _gate(found.peak_bytes, fail_over)


def _refuse(path: str, given: list[str]) -> None:
    from togi.core.errors import TogiError

    if given:
        raise TogiError(
            f"{path} is a CUDA memory snapshot, which is read and not run: {', '.join(given)} would have no effect. "
            "Leave it out; --report, --json and --fail-over work"
        )


def _gate(peak_bytes: int, fail_over: int | None) -> int:
    from togi.core.quantities import size

    if fail_over is None or peak_bytes <= fail_over:
        return 0
    typer.echo(f"togi memory: the peak of {size(peak_bytes)} is above --fail-over {size(fail_over)}", err=True)
    return 1
