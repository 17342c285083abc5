"""``togi precision``: what each precision takes, and how right it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from togi.cli.options import Journal, Json, with_options, with_permits
from togi.core.options import Option
from togi.core.settings import OPTIONS

if TYPE_CHECKING:
    from togi.study.price_records import PriceList

_TAKEN = frozenset({"data", "metric", "better", "calibration", "time_limit_s", "only", "without", "device", "seed"})


_HELP = {
    "time_limit_s": "Stop after this long: 90s, 5m, 1h. Default: 5m after loading.",
    "metric": "What is measured on the validation data: a measure, or a function of outputs and labels. Default: "
    "agreement with the original.",
    "data": "Validation data: a function that returns samples, (samples, labels) or a togi.Validation. Default: the "
    "subject's own.",
}
"""Where the options of a study say more than holds here."""


def _options() -> Iterator[Option]:
    for option in OPTIONS:
        if option.name in _TAKEN:
            yield replace(option, help=_HELP.get(option.name, option.help))


@with_permits
@with_options(_options())
def precision(
    subject: Annotated[
        str,
        typer.Argument(metavar="SUBJECT", help="file.py:factory, package.module:factory, timm:NAME, model.pt2, ..."),
    ],
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
    *,
    journal: Journal = None,
    json: Json = False,
    **settings: Any,
) -> int:
    """List what each precision takes and how right it is on your data. Nothing is chosen.

    Exit code 1 when nothing but the original could be measured.
    """
    from togi import api
    from togi.cli.output import check_report_path
    from togi.render.progress import watch

    if report is not None:
        check_report_path(report, force)
    with watch(subject) as progress:
        prices = api.precision(subject, journal=journal, progress=progress, **settings)
    _show(prices, report, json=json)
    return 0 if any(not price.recipe.is_reference and price.speedup_x for price in prices.prices) else 1


def _show(prices: PriceList, report: Path | None, *, json: bool) -> None:
    from togi.cli.output import print_json, print_text, say, stdout, tell, write_whole
    from togi.render.html import price_list_html
    from togi.render.json import price_list_json
    from togi.render.price_list_text import price_list_text

    if json:
        print_json(price_list_json(prices))
    else:
        print_text(stdout(), price_list_text(prices))
    if report is not None:
        write_whole(price_list_html(prices), report)
        (say if json else tell)(f"report: {report}")
