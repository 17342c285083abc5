"""The short forms that ``print`` and notebooks show of ``togi.tune``, ``bench``, ``memory``, ``fit`` and ``check``.

What draws (rich, Jinja2) is imported when something is shown.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from togi.core.record import Record, as_html, as_text
from togi.core.records import Study
from togi.footprint.account.record import Account
from togi.footprint.fit.result import FitResult
from togi.footprint.prediction.record import Prediction
from togi.footprint.snapshot.record import SnapshotAccount
from togi.lint.finding import CheckResult
from togi.study.comparison import Agreement, Comparison, Verification
from togi.study.price_records import PriceList

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 100


def show_results() -> None:
    """Make records of these kinds show their short forms."""
    as_text.register(Study, _study)
    as_text.register(Agreement, lambda agreement: agreement.verdict)
    as_text.register(Comparison, _comparison)
    as_text.register(Verification, _verification)
    as_text.register(PriceList, _price_list)
    as_text.register(Account, _account)
    as_text.register(Prediction, _prediction)
    as_text.register(SnapshotAccount, _snapshot)
    as_text.register(FitResult, _fit)
    as_text.register(CheckResult, _check)
    as_html.register(Record, _text_as_html)
    as_html.register(Study, _study_html)
    as_html.register(Comparison, _comparison_html)
    as_html.register(Account, _account_html)
    as_html.register(FitResult, _fit_html)
    as_html.register(CheckResult, _check_html)


def _study(study: Study) -> str:
    from togi.render.study_text import study_text

    return _plain(study_text(study, width=_WIDTH))


def _price_list(prices: PriceList) -> str:
    from togi.render.price_list_text import price_list_text

    return _plain(price_list_text(prices))


def _comparison(comparison: Comparison) -> str:
    from togi.render.comparison_text import comparison_text

    return _plain(comparison_text(comparison))


def _verification(verification: Verification) -> str:
    from togi.render.comparison_text import verification_text

    return _plain(verification_text(verification))


def _account(account: Account) -> str:
    from togi.render.memory_text import account_text

    return _plain(account_text(account))


def _prediction(prediction: Prediction) -> str:
    from togi.render.memory_text import prediction_text

    return _plain(prediction_text(prediction))


def _snapshot(account: SnapshotAccount) -> str:
    from togi.render.snapshot_text import snapshot_text

    return _plain(snapshot_text(account))


def _fit(result: FitResult) -> str:
    from togi.render.fit_text import fit_text

    return _plain(fit_text(result))


def _check(result: CheckResult) -> str:
    from togi.render.findings.lines import plain_text
    from togi.render.findings.text import full

    return plain_text(full(result, _WIDTH)).rstrip("\n")


def _text_as_html(record: Record) -> str | None:
    text = as_text(record)
    return f"<pre>{html.escape(text)}</pre>" if text else None


def _study_html(study: Study) -> str:
    from togi.render.html import study_fragment

    return study_fragment(study)


def _comparison_html(comparison: Comparison) -> str:
    from togi.render.html import comparison_fragment

    return comparison_fragment(comparison)


def _account_html(account: Account) -> str:
    from togi.render.html import account_fragment

    return account_fragment(account)


def _fit_html(result: FitResult) -> str:
    from togi.render.html import fit_fragment

    return fit_fragment(result)


def _check_html(result: CheckResult) -> str:
    from togi.render.html import check_fragment

    return check_fragment(result)


def _plain(text: RenderableType) -> str:
    """Draw without colours, and without the spaces that pad lines."""
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(text)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
