"""``togi explain``: what a technique or a rule does, its claim, its source, its risk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from togi.cli.options import Device, Json, Seed, complete_rule, complete_technique, without_effect

if TYPE_CHECKING:
    from rich.console import RenderableType

    from togi.records import Record


def _complete(incomplete: str) -> list[str]:
    return [*complete_technique(incomplete), *complete_rule(incomplete)]


def explain(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A technique or a rule of check; without it all are listed.", autocompletion=_complete
        ),
    ] = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """List the techniques and the rules of check, or print the page of one: claim, source, risk, can it run here."""
    without_effect("explain", seed=seed)
    if id is None:
        _print_all(json, device)
    else:
        _print_one(id, json, device)
    return 0


def _technique_ids() -> tuple[str, ...]:
    from togi.techniques import all_techniques

    return tuple(all_techniques())


def _rule_ids() -> tuple[str, ...]:
    from togi.check.names import rule_kinds

    return tuple(rule_kinds())


def _print_all(json: bool, device: str) -> None:
    from rich.console import Group
    from rich.text import Text

    from togi.check.pages import all_rule_pages
    from togi.report.rule_page import rules_text
    from togi.report.technique_page import all_pages, list_text
    from togi.subject.machine import machine

    techniques, rules = all_pages(machine(device), device), all_rule_pages()
    hint = Text("togi explain ID prints one of them: claim or example, source, cost and risk.", style="dim")
    content = {"techniques": [p.model_dump() for p in techniques], "rules": [p.model_dump() for p in rules]}
    _print("techniques", content, Group(list_text(techniques), rules_text(rules), hint), json)


def _print_one(id: str, json: bool, device: str) -> None:
    """A technique and a rule may share a name (``torchscript``): then both are meant."""
    from rich.console import Group
    from rich.text import Text

    from togi.errors import UnknownNameError, nearest

    known: list[tuple[str, Record, RenderableType]] = []
    if (name := id.replace("-", "_")) in _technique_ids():
        known.append(("technique", *_technique(name, device)))
    if (name := id.replace("_", "-")) in _rule_ids():
        known.append(("rule", *_rule(name)))
    if not known:
        near = nearest(id, (*_technique_ids(), *_rule_ids()))
        raise UnknownNameError(f"there is no technique and no rule '{id}'{near}. 'togi explain' lists them")
    content = {kind: page.model_dump() for kind, page, _ in known}
    parts = [part for _, _, text in known for part in (Text(), text)]
    _print(known[0][0], content, Group(*parts[1:]), json)


def _technique(id: str, device: str) -> tuple[Record, RenderableType]:
    from togi.report.technique_page import page_text, technique_page
    from togi.subject.machine import machine
    from togi.techniques import technique

    page = technique_page(technique(id), machine(device), device)
    return page, page_text(page)


def _rule(id: str) -> tuple[Record, RenderableType]:
    from togi.check.pages import rule_page
    from togi.check.rule import all_rules
    from togi.report.rule_page import rule_text

    page = rule_page(all_rules()[id])
    return page, rule_text(page)


def _print(kind: str, content: dict[str, Any], text: RenderableType, json: bool) -> None:
    from togi.cli.output import print_json, print_text, stdout
    from togi.records import SCHEMA_VERSION

    if json:
        print_json({"schema_version": SCHEMA_VERSION, "kind": kind, **content})
    else:
        print_text(stdout(), text)
