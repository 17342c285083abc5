"""The frame of every HTML document: one file that loads nothing, with a policy that forbids the browser to."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

import togi
from togi.render.html.markup import Child, Markup, element, join


def document(title: str, *, header: Markup, sections: Sequence[Child], footer: str, script: str) -> str:
    """One HTML document in UTF-8. ``script`` names the asset that it runs, after what all pages run."""
    code = asset("page.js") + asset(script)
    body = element(
        "body",
        None,
        header,
        element("main", None, *sections),
        element("footer", None, footer),
        element("div", {"id": "hint", "role": "tooltip", "hidden": "hidden"}),
        Markup(f"<script>{code}</script>"),
    )
    return f'<!doctype html>\n<html lang="en">{_head(title, code)}{body}</html>\n'


def section(title: str, *children: Child, kind: str | None = None) -> Markup:
    return element("section", {"class": kind}, element("h2", None, title), *children)


def bullets(sentences: Sequence[str]) -> Markup:
    return element("ul", None, *(element("li", None, sentence) for sentence in sentences))


def tile(name: str, value: str, small: str = "") -> Markup:
    return element("div", None, element("dt", None, name), element("dd", None, value, element("small", None, small)))


def asset(name: str) -> str:
    return files("togi.render.html").joinpath("assets", name).read_text(encoding="utf-8")


def _head(title: str, code: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return join(
        Markup("<head>"),
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta name="generator" content="togi {togi.__version__}">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", None, f"togi: {title}"),
        Markup(f"<style>{asset('report.css')}</style></head>"),
    )
