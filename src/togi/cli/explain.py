"""``togi explain``: what a technique, a rule or a claim says; with ``--prove``, whether the claim is true here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from togi.cli.options import Device, Json, Seed, complete_rule, complete_technique, without_effect

if TYPE_CHECKING:
    from rich.console import RenderableType

    from togi.core.records import Record


def _complete(incomplete: str) -> list[str]:
    return [*complete_technique(incomplete), *complete_rule(incomplete), *_claim_ids()]


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
        bool, typer.Option("--prove", help="Measure the claim on this machine; without ID, every claim.")
    ] = False,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """List techniques, rules of check and claims, or print the page of one: what it says, source, risk.

    With --prove the claim is measured here, in a process of its own, and the figures decide.
    """
    if not prove:
        without_effect("explain", seed=seed)
    if prove:
        _prove(id, json, seed)
    elif id is None:
        _print_all(json, device)
    else:
        _print_one(id, json, device)
    return 0


def _technique_ids() -> tuple[str, ...]:
    from togi.techniques import all_techniques

    return tuple(all_techniques())


def _rule_ids() -> tuple[str, ...]:
    from togi.lint.rule import rule_kinds

    return tuple(rule_kinds())


def _claim_ids() -> tuple[str, ...]:
    from togi.claims import all_claims

    return tuple(all_claims())


def _prove(id: str | None, json: bool, seed: int) -> None:
    from rich.console import Group
    from rich.text import Text

    from togi.claims.prove import prove
    from togi.render.pages import proof_text

    ids = _claim_ids() if id is None else (id.replace("_", "-"),)
    proofs = [prove(id, seed=seed) for id in ids]
    parts = [part for proof in proofs for part in (Text(), proof_text(proof))]
    _print("proofs", {"proofs": [proof.model_dump() for proof in proofs]}, Group(*parts[1:]), json)


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
    content = {kind: [page.model_dump() for page in found] for kind, found in pages.items()}
    _print("techniques", content, Group(list_text(techniques, rules, claims), hint), json)


def _print_one(id: str, json: bool, device: str) -> None:
    """A technique, a rule and a claim may share a name (``torchscript``): then all are meant."""
    from rich.console import Group
    from rich.text import Text

    from togi.core.errors import UnknownNameError, nearest

    known: list[tuple[str, Record, RenderableType]] = []
    if (name := id.replace("-", "_")) in _technique_ids():
        known.append(("technique", *_technique(name, device)))
    if (name := id.replace("_", "-")) in _rule_ids():
        known.append(("rule", *_rule(name)))
    if name in _claim_ids():
        known.append(("claim", *_claim(name)))
    if not known:
        near = nearest(id, (*_technique_ids(), *_rule_ids(), *_claim_ids()))
        raise UnknownNameError(f"there is no technique, rule or claim '{id}'{near}. 'togi explain' lists them")
    content = {kind: page.model_dump() for kind, page, _ in known}
    parts = [part for _, _, text in known for part in (Text(), text)]
    _print(known[0][0], content, Group(*parts[1:]), json)


def _technique(id: str, device: str) -> tuple[Record, RenderableType]:
    from togi.machine.describe import machine
    from togi.render.pages import page_text, technique_page
    from togi.techniques import technique

    page = technique_page(technique(id), machine(device), device)
    return page, page_text(page)


def _rule(id: str) -> tuple[Record, RenderableType]:
    from togi.lint.pages import rule_page
    from togi.lint.rule import all_rules
    from togi.render.pages import page_text

    page = rule_page(all_rules()[id])
    return page, page_text(page)


def _claim(id: str) -> tuple[Record, RenderableType]:
    from togi.claims import all_claims
    from togi.render.pages import claim_page, page_text

    page = claim_page(all_claims()[id])
    return page, page_text(page)


def _print(kind: str, content: dict[str, Any], text: RenderableType, json: bool) -> None:
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.records import SCHEMA_VERSION

    if json:
        print_json({"schema_version": SCHEMA_VERSION, "kind": kind, **content})
    else:
        print_text(stdout(), text)
