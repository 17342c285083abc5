"""An account of memory as one offline HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import togi
from togi.core.quantities import plural, significant, size
from togi.footprint.account.record import Account, HeldName, Holding, Kept
from togi.render.account_text import short_line
from togi.render.html.document import bullets, document, section, tile
from togi.render.html.icicle import icicle
from togi.render.html.markup import Markup, element
from togi.render.html.timeline import css, timeline_figure

_SHOWN = 40


def account_html(account: Account) -> str:
    """The same bytes for the same account."""
    return document(
        account.subject or "memory",
        header=_header(account),
        sections=list(_sections(account)),
        footer=f"togi {togi.__version__}. Sums are those of torch's {account.device} allocator, to the byte.",
        script="account.js",
    )


def _header(account: Account) -> Markup:
    peak = account.peak
    what = "training step" if account.train else "inference"
    place = ", ".join(filter(None, (peak.op, f"in {peak.module}" if peak.module else "", peak.phase)))
    tiles = [
        tile("peak", size(account.peak_bytes), f"{account.peak_bytes:,} bytes"),
        tile("before the run", size(account.baseline_bytes), "parameters, inputs, optimizer state"),
        tile("the least possible", size(account.minimum_bytes), f"the peak is {significant(account.factor_x)} x that"),
    ]
    return element(
        "header",
        None,
        element("p", {"class": "brand"}, "togi", element("small", None, f"memory of {what}, {account.device}")),
        element("h1", None, account.subject or "watched code"),
        element("p", {"class": "headline"}, element("strong", None, size(account.peak_bytes)), "at the peak"),
        element("p", {"class": "verdict"}, f"Reached in {place}."),
        element("p", {"class": "recipe"}, peak.line) if peak.line else None,
        element("dl", {"class": "tiles"}, *tiles),
    )


def _sections(account: Account) -> Iterator[Markup]:
    advice = list(_advice(account.held_names))
    if advice or account.notes:
        yield section("What to know", bullets([*advice, *account.notes]), kind="notice")
    about = "Point at a moment to read what was alive."
    yield section("Memory over time", element("p", None, about), timeline_figure(account.timeline))
    figure = icicle(account.holdings)
    if figure is not None:
        about = "Everything alive at the peak, by the module that holds it or asked for it."
        yield section("The peak by module", element("p", None, about), figure)
    yield section("Owners at the peak", _owners(account.holdings, account.peak_bytes))
    if account.kept:
        total = size(sum(kept.bytes for kept in account.kept))
        about = f"{total} in {plural(len(account.kept), 'tensor')}, each counted once; weights are among them."
        yield section("Kept for backward", element("p", None, about), _kept(account.kept))


def _advice(held: Sequence[HeldName]) -> Iterator[str]:
    for line in dict.fromkeys(one.line for one in held):
        names = [one for one in held if one.line == line]
        listed = ", ".join(sorted({one.name for one in names}))
        yield f"del {listed} before {short_line(line)} lowers the peak by {size(names[0].saved_bytes)}."


def _owners(holdings: Sequence[Holding], peak: int) -> Markup:
    rows = (
        (
            element("span", None, element("i", {"class": f"swatch {css(one.category)}"}), f" {one.category.value}"),
            size(one.bytes),
            f"{one.bytes / peak:.1%}",
            f"{one.blocks:,}",
            one.module,
            one.op,
            short_line(one.line),
        )
        for one in holdings[:_SHOWN]
    )
    return _table(("", "bytes", "share", "blocks", "module", "operation", "line"), rows, len(holdings) - _SHOWN)


def _kept(kept: Sequence[Kept]) -> Markup:
    rows = (
        (size(one.bytes), ", ".join(one.kept_by), one.category.value, one.module, one.op, short_line(one.line))
        for one in kept[:_SHOWN]
    )
    return _table(("bytes", "kept by", "what", "module", "made by", "line"), rows, len(kept) - _SHOWN)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str | Markup]], more: int) -> Markup:
    head = element("tr", None, *(element("th", {"scope": "col"}, heading) for heading in headings))
    body = (element("tr", None, *(element("td", None, cell) for cell in row)) for row in rows)
    table = element("table", {"class": "plain"}, element("thead", None, head), element("tbody", None, *body))
    rest = element("p", None, f"and {more} smaller ones; --json has them all") if more > 0 else None
    return element("div", {"class": "scroll"}, table, rest)
