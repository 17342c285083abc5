"""``togi explain``: what a technique, a rule or a claim says; with ``--prove``, whether it is true here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from togi.cli.options import Device, Json, Seed, complete_rule, with_permits, without_effect
from togi.cli.output import say
from togi.core.needs_torch import need_torch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from togi.render.pages import Page


def _complete(incomplete: str) -> list[str]:
    from togi.claims import all_claims
    from togi.techniques import all_remedies

    remedies = [id for id in all_remedies() if id.startswith(incomplete)]
    return [*remedies, *complete_rule(incomplete), *all_claims()]


@with_permits
def explain(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A technique, a rule of check, or a claim; without it all are listed.",
            autocompletion=_complete,
        ),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Measure what the technique or the claim ID says: less than a minute.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="SUBJECT", help="With --prove: measure the technique on this (as tune takes it)."),
    ] = None,
    prove_all: Annotated[
        bool, typer.Option("--prove-all", help="Measure every technique and claim, one by one: some ten minutes.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write what was measured as a page.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """List techniques, rules of check and claims, or print the page of one: what it says, source, risk.

    With --prove the claim is measured here, in processes of its own, and the figures decide: it holds, does not hold,
    or cannot be tested here. A technique is measured next to the same without it, on a small model of its own or --on
    SUBJECT.
    """
    if prove_all and (prove or id is not None or on is not None):
        raise typer.BadParameter("--prove-all measures everything, each on its own model: give no ID, --prove or --on")
    if prove and id is None:
        raise typer.BadParameter("name what is to be measured (togi explain ID --prove), or give --prove-all")
    if prove or prove_all:
        _prove(id, on or "", report, force, json, device, seed)
        return 0
    without_effect("explain", seed=seed, on=on, report=report, force=force)
    if id is None:
        _print_all(json, device)
    else:
        _print_one(id, json, device)
    return 0


def _prove(id: str | None, on: str, report: Path | None, force: bool, json: bool, device: str, seed: int) -> None:
    """``id``: None measures everything. The page is written after every proof: an interruption loses none."""
    need_torch("explain --prove")
    from togi.claims import Proofs
    from togi.claims.prove import attempt, every_id, prove
    from togi.cli.output import check_report_path, write_whole
    from togi.core.records import now
    from togi.machine.describe import machine
    from togi.render.html import proofs_html
    from togi.render.proofs_text import proofs_text

    if report is not None:
        check_report_path(report, force)
    ids, measured = (every_id(), attempt) if id is None else ((id,), prove)
    proofs = Proofs(started=now(), device=device, machine=machine(device), proofs=())
    for number, claim in enumerate(ids, 1):
        say(f"measuring {claim} here ({number} of {len(ids)}, less than a minute)")
        proof = measured(claim, on=on, device=device, seed=seed)
        say(f"{claim}: {proof.verdict.value}")
        proofs = proofs.model_copy(update={"proofs": (*proofs.proofs, proof)})
        if report is not None:
            write_whole(proofs_html(proofs), report)
    _print("proofs", proofs.model_dump(), proofs_text(proofs), json)
    if report is not None:
        say(f"report: {report}")


def _print_all(json: bool, device: str) -> None:
    from rich.console import Group
    from rich.text import Text

    from togi.claims import all_claims
    from togi.lint.pages import all_rule_pages
    from togi.machine.describe import machine
    from togi.render.pages import all_technique_pages, claim_page, list_text

    techniques, rules = all_technique_pages(machine(device), device), all_rule_pages()
    hint = Text("togi explain ID prints one of them: claim or example, source, cost and risk.", style="dim")
    claims = [claim_page(claim) for claim in all_claims().values()]
    pages = {"techniques": techniques, "rules": rules, "claims": claims}
    content = {kind: [page.model_dump() for page in of_kind] for kind, of_kind in pages.items()}
    _print("techniques", content, Group(list_text(techniques, rules, claims), hint), json)


def _print_one(id: str, json: bool, device: str) -> None:
    """A technique, a rule and a claim may share a name (``torchscript``): then all are meant."""
    from togi.claims import all_claims
    from togi.core.errors import UnknownNameError, nearest
    from togi.lint.rule import rule_kinds
    from togi.render.pages import page_text
    from togi.render.terminal import stack
    from togi.techniques import all_remedies

    pages = dict(_pages(id, device))
    if not pages:
        near = nearest(id, (*all_remedies(), *rule_kinds(), *all_claims()))
        raise UnknownNameError(f"there is no technique, rule or claim '{id}'{near}. 'togi explain' lists them")
    content = {kind: page.model_dump() for kind, page in pages.items()}
    _print(next(iter(pages)), content, stack(*map(page_text, pages.values())), json)


def _pages(id: str, device: str) -> Iterator[tuple[str, Page]]:
    """Every page of that name, by kind; dashes and underscores are the same."""
    from togi.claims import all_claims
    from togi.lint.pages import rule_page
    from togi.lint.rule import all_rules, rule_kinds
    from togi.machine.describe import machine
    from togi.render.pages import claim_page, technique_page
    from togi.techniques import all_remedies

    if (name := id.replace("-", "_")) in all_remedies():
        yield "technique", technique_page(all_remedies()[name], machine(device), device)
    if (name := id.replace("_", "-")) in rule_kinds():
        yield "rule", rule_page(all_rules()[name])
    if name in all_claims():
        yield "claim", claim_page(all_claims()[name])


def _print(kind: str, content: dict[str, Any], text: RenderableType, json: bool) -> None:
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.records import SCHEMA_VERSION

    if json:
        print_json({"schema_version": SCHEMA_VERSION, "kind": kind, **content})
    else:
        print_text(stdout(), text)
