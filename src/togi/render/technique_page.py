"""A technique's docstring as its published page, and the list of all techniques by stage."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from togi.core.docstring import prose, split_docstring
from togi.core.records import Facts, Machine, Record, Scalar, Stage
from togi.techniques import Technique, all_techniques

HEADINGS = ("What it does", "When it applies", "When it refuses", "Claim", "Source", "Cost and risk")
_STAGE_MEANING = {
    Stage.REWRITE: "exact algebra on the module",
    Stage.LAYOUT: "how tensors lie in memory",
    Stage.PRECISION: "fewer bits; approximate unless said otherwise",
    Stage.ENGINE: "what executes the module",
    Stage.RUNTIME: "what surrounds the call",
}


class TechniquePage(Record):
    """What is published of one technique, and what of it holds on this machine."""

    id: str
    stage: Stage
    summary: str
    exact: bool
    devices: tuple[str, ...]
    sections: dict[str, str]
    """Heading -> paragraphs, separated by empty lines."""
    options: tuple[dict[str, Scalar], ...] = ()
    """Values worth trying, for a subject of which nothing is known."""
    packages: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    """Why it cannot run on this machine; empty when it can."""
    mends: tuple[str, ...] = ()


def all_pages(machine: Machine, device: str) -> tuple[TechniquePage, ...]:
    return tuple(technique_page(technique, machine, device) for technique in all_techniques().values())


def technique_page(technique: Technique, machine: Machine, device: str) -> TechniquePage:
    summary, sections = split_docstring(inspect.getdoc(type(technique)) or "", HEADINGS)
    missing = [(package, problem) for package in technique.packages if (problem := package.missing())]
    kind = device.partition(":")[0]
    obstacles = [problem for _, problem in missing]
    if kind not in technique.devices:
        obstacles.append(f"it works on {' and '.join(sorted(technique.devices))} only; --device is {device}")
    if kind == "cuda" and machine.gpu is None:
        obstacles.append("no CUDA device was found here")
    return TechniquePage(
        id=technique.id,
        stage=technique.stage,
        summary=summary,
        exact=technique.exact,
        devices=tuple(sorted(technique.devices)),
        sections=sections,
        options=_options(technique, machine, kind),
        packages=tuple(package.distribution for package in technique.packages),
        obstacles=tuple(obstacles),
        mends=tuple(dict.fromkeys(package.mend for package, _ in missing)),
    )


def list_text(pages: Sequence[TechniquePage]) -> RenderableType:
    """All techniques by stage, one line each."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for stage, members in groupby(pages, key=lambda page: page.stage):
        table.add_row(Text(stage.value, style="bold"), Text(_STAGE_MEANING[stage], style="dim"))
        for page in members:
            table.add_row(Text(f"  {page.id}", style="cyan" if not page.obstacles else "dim"), _line(page))
        table.add_row()
    return table


def page_text(page: TechniquePage) -> RenderableType:
    """The whole page."""
    kind = "exact up to rounding" if page.exact else "approximate: eligible only with --allow"
    title = Text(page.id, style="bold cyan").append(f"  {page.stage.value}, {kind}", style="dim")
    parts: list[RenderableType] = [title, prose(page.summary)]
    for heading, body in page.sections.items():
        parts += [Text(), *([Text(heading, style="bold")] if heading else []), Padding(prose(body), (0, 0, 0, 2))]
    parts += [Text(), Text("Options worth trying", style="bold"), *map(_option, page.options or ({},))]
    parts += [Text(), Text("On this machine", style="bold"), *_here(page)]
    return Group(*parts)


def _line(page: TechniquePage) -> Text:
    line = prose(page.summary)
    if not page.exact:
        line.append("  approximate", style="yellow")
    if page.obstacles:
        line.append(f"  not here: {page.obstacles[0]}", style="dim")
    return line


def _option(options: dict[str, Scalar]) -> Text:
    return Text("  " + (", ".join(f"{key}={value}" for key, value in options.items()) or "none: it is on or off"))


def _here(page: TechniquePage) -> list[Text]:
    if not page.obstacles:
        return [Text("  it can run", style="green")]
    lines = [Text(f"  {obstacle}", style="yellow") for obstacle in page.obstacles]
    return lines + [Text("  mend: ", style="dim").append(mend, style="cyan") for mend in page.mends]


def _options(technique: Technique, machine: Machine, device: str) -> tuple[dict[str, Scalar], ...]:
    """For a subject of which nothing is known; a third party's technique may not cope with that."""
    try:
        return tuple(technique.options(Facts(machine=machine, module_class="Module", device=device)))
    except Exception as error:
        return ({"unknown": f"{type(error).__name__}: {error}"},)
