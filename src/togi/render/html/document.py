"""HTML documents of Jinja templates: one file that loads nothing, with a policy that forbids the browser to.

Whatever a template prints is escaped, and control characters become visible (HTML forbids them even as references).
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from togi.core import quantities
from togi.core.version import version
from togi.render.memory_text import short_line

_FORMATTERS = "bounds count milliseconds percent plural relative seconds significant size times".split()
"""Of ``core.quantities``: templates use them as filters."""


def document(template: str, *, title: str, script: str = "", **context: Any) -> str:
    """One page in UTF-8. ``script`` names the asset that it runs, after what all pages run."""
    code = _asset("page.js") + (_asset(script) if script else "")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            version=version(),
            code=Markup(code),
            style=Markup(_asset("report.css")),
            policy=Markup(
                f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
            ),
            **context,
        )
    )


def fragment(template: str, **context: Any) -> str:
    """HTML to be shown inside another page, a notebook; the style's variables belong to its element alone."""
    style = Markup(_asset("report.css").replace(":root", "&"))
    return _environment().get_template(template).render(style=style, **context)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("togi.render.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: getattr(quantities, name) for name in _FORMATTERS} | {"short_line": short_line}
    return environment


def _visible(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in value)


def _asset(name: str) -> str:
    return files("togi.render.html").joinpath(f"assets/{name}").read_text(encoding="utf-8")
