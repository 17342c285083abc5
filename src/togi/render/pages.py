"""The pages of techniques, rules and claims, made of their docstrings: for ``togi explain``, and as Markdown."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from togi import claims
from togi.claims import Claim
from togi.core.docstring import inline_markdown, markdown, prose, split_docstring
from togi.core.proven import Mark
from togi.core.records import Facts, Machine, Record, Scalar, Stage
from togi.lint.pages import KIND_MEANING, RulePage
from togi.render.terminal import listing, stack
from togi.techniques import Remedy, Technique, all_remedies
from togi.techniques.base import HEADINGS
from togi.techniques.registry import technique_mark

STAGE_MEANING = {
    Stage.REWRITE: "exact algebra on the module",
    Stage.LAYOUT: "how tensors lie in memory",
    Stage.PRECISION: "fewer bits; approximate unless said otherwise",
    Stage.ENGINE: "what executes the module",
    Stage.ACTIVATIONS: "what a training step keeps for its backward pass",
    Stage.OPTIMIZER: "how a training step updates parameters",
    Stage.RUNTIME: "what surrounds the call",
}


class TechniquePage(Record):
    """The published page of a technique, and what of it holds on this machine."""

    id: str
    stage: Stage
    summary: str
    exact: bool
    devices: tuple[str, ...]
    sections: dict[str, str]
    """Heading -> paragraphs, separated by empty lines."""
    proven: dict[str, str | None] = {}
    """By device that it works on: the day on which its tests last passed on one; None where nobody has tried."""
    options: tuple[dict[str, Scalar], ...] = ()
    """Values worth trying, for a subject of which nothing is known."""
    packages: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    """Why it cannot run on this machine; empty when it can."""
    fixes: tuple[str, ...] = ()
    of_steps: bool = False
    """It is for training steps alone: each study proves it on its own."""

    @property
    def command(self) -> str:
        """What measures it here."""
        return f"togi tune SUBJECT --train --only {self.id}" if self.of_steps else f"togi explain {self.id} --prove"

    @property
    def where_proven(self) -> str:
        if self.of_steps:
            return "in each study, on its own training step"
        return Mark(part=self.id, days=self.proven).sentence


class ClaimPage(Record):
    """The published page of a claim."""

    id: str
    summary: str
    sections: dict[str, str]


Page = TechniquePage | RulePage | ClaimPage


def claim_page(claim: Claim) -> ClaimPage:
    summary, sections = split_docstring(inspect.getdoc(type(claim)) or "", claims.HEADINGS)
    return ClaimPage(id=claim.id, summary=summary, sections=sections)


def all_technique_pages(machine: Machine, device: str) -> tuple[TechniquePage, ...]:
    return tuple(technique_page(remedy, machine, device) for remedy in all_remedies().values())


def technique_page(technique: Remedy, machine: Machine, device: str) -> TechniquePage:
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
        proven=technique_mark(technique).days,
        options=_options(technique, machine, kind),
        packages=tuple(package.distribution for package in technique.packages),
        obstacles=tuple(obstacles),
        fixes=tuple(dict.fromkeys(package.fix for package, _ in missing)),
        of_steps=not technique.infers,
    )


def list_text(
    techniques: Sequence[TechniquePage], rules: Sequence[RulePage], claims: Sequence[ClaimPage]
) -> RenderableType:
    """Everything there is a page of, one line each, in groups."""
    grid = listing()
    for stage, members in groupby(techniques, key=lambda page: page.stage):
        _group(grid, stage.value, STAGE_MEANING[stage], list(members))
    for kind, found in groupby(rules, key=lambda page: page.kind):
        _group(grid, f"check: {kind}", KIND_MEANING[kind], list(found))
    _group(grid, "claims", "advice; --prove measures it here, as it does what a technique claims", claims)
    return grid


def page_text(page: Page) -> RenderableType:
    """The whole page."""
    title = Text(page.id, style="bold cyan").append(f"  {_kind(page)}", style="dim")
    sections = [(heading, _body(text)) for heading, text in page.sections.items()]
    return stack(
        Group(title, prose(page.summary)),
        *(Group(*([Text(heading, "bold")] if heading else []), body) for heading, body in (*sections, *_more(page))),
    )


def page_markdown(page: TechniquePage | ClaimPage) -> str:
    """The page without what depends on the machine; the rules' are in ``togi.lint.pages``."""
    parts = [f"# {page.id}", f"*{_kind(page).capitalize()}.*", inline_markdown(page.summary)]
    for heading, body in page.sections.items():
        parts += [f"## {heading}"] * bool(heading) + [markdown(body)]
    if isinstance(page, TechniquePage):
        parts.append(f"## Proven\n\n{page.where_proven}")
    parts.append(f"Measure it on your machine: `{_measured_by(page)}`")
    return "\n\n".join(parts) + "\n"


def _group(grid: Table, name: str, meaning: str, pages: Sequence[Page]) -> None:
    grid.add_row(Text(name, style="bold"), Text(meaning, style="dim"))
    for page in pages:
        style = "dim" if isinstance(page, TechniquePage) and page.obstacles else "cyan"
        grid.add_row(Text(f"  {page.id}", style=style), _line(page))
    grid.add_row()


def _line(page: Page) -> Text:
    line = prose(page.summary)
    if isinstance(page, TechniquePage):
        if not page.exact:
            line.append("  approximate", style="yellow")
        if page.obstacles:
            line.append(f"  not here: {page.obstacles[0]}", style="dim")
    return line


def _kind(page: Page) -> str:
    if isinstance(page, TechniquePage):
        return f"{page.stage.value}, " + (
            "exact up to rounding" if page.exact else "approximate: eligible only with --allow"
        )
    if isinstance(page, RulePage):
        return f"{page.kind} rule, {'on by default' if page.default else 'off by default: select it'}"
    return "claim"


def _more(page: Page) -> Iterator[tuple[str, RenderableType]]:
    """Sections of a page beyond its docstring: on this machine, and what to type next."""
    if isinstance(page, RulePage):
        yield "Silence it", _command(f"# togi: ignore[{page.id}]")
        if page.technique:
            yield "Fixed by", _command(f"togi explain {page.technique}")
        return
    if isinstance(page, TechniquePage):
        yield "Options worth trying", Group(*(Text(f"  {_options_text(options)}") for options in page.options or ({},)))
        yield "Proven", Text(f"  {page.where_proven}")
        yield "On this machine", Group(*_here(page))
    yield "Measure it here", _command(_measured_by(page))


def _measured_by(page: TechniquePage | ClaimPage) -> str:
    return page.command if isinstance(page, TechniquePage) else f"togi explain {page.id} --prove"


def _command(line: str) -> Text:
    return Text(f"  {line}", style="cyan")


def _body(text: str) -> RenderableType:
    """Prose and literal blocks in turn; a block is what is indented."""
    paragraphs: list[RenderableType] = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            paragraphs.append(Padding(Text(textwrap.dedent(paragraph), style="green"), (0, 0, 0, 2)))
        elif said := paragraph.removesuffix("::").rstrip():
            paragraphs.append(prose(f"{said}:" if paragraph.endswith("::") else said))
    return Padding(Group(*paragraphs), (0, 0, 0, 2))


def _options_text(options: dict[str, Scalar]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "none: it is on or off"


def _here(page: TechniquePage) -> list[Text]:
    if not page.obstacles:
        return [Text("  it can run", style="green")]
    lines = [Text(f"  {obstacle}", style="yellow") for obstacle in page.obstacles]
    return lines + [Text("  fix: ", style="dim").append(fix, style="cyan") for fix in page.fixes]


def _options(technique: Remedy, machine: Machine, device: str) -> tuple[dict[str, Scalar], ...]:
    """For a subject of which nothing is known; a third party's technique may not cope with that."""
    if not isinstance(technique, Technique):
        return ({},)
    try:
        return tuple(technique.options(Facts(machine=machine, module_class="Module", device=device)))
    except Exception as error:
        return ({"unknown": f"{type(error).__name__}: {error}"},)
