"""What mkdocs.yml cannot say: the site's pages that are no files below docs/, and links that leave that folder.

README.md, CHANGELOG.md, benchmarks/README.md and examples are shown from where they lie; the pages of techniques and
claims are made of their docstrings, as ``togi explain`` prints them. No second copy of either is kept.
"""

from __future__ import annotations

import json
import posixpath
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from togi.claims import all_claims
from togi.core.docstring import inline_markdown
from togi.lint.pages import all_rule_pages
from togi.machine.describe import machine
from togi.render.pages import STAGE_MEANING, ClaimPage, TechniquePage, all_technique_pages, claim_page, page_markdown

ROOT = Path(__file__).parents[1]
SHOWN = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "examples/train.py": "examples/train.py",
    "examples/notebook.ipynb": "examples/notebook.md",
}
"""Files of the repository outside docs/ by their place on the site."""
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#|/)([^)#\s]+)([^)\s]*)\)")

techniques = all_technique_pages(machine(), "cpu")
claims = [claim_page(claim) for claim in all_claims().values()]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Techniques by stage and rules by kind."""
    stages = [
        {stage.value.capitalize(): [{page.id: f"techniques/{page.id}.md"} for page in pages]}
        for stage, pages in groupby(techniques, key=lambda page: page.stage)
    ]
    kinds = [
        {f"Kind {kind}": [{page.id: f"rules/{page.id}.md"} for page in pages]}
        for kind, pages in groupby(all_rule_pages(), key=lambda page: page.kind)
    ]
    advice = {"Claims": [{page.id: f"claims/{page.id}.md"} for page in claims]}
    made: dict[str, list[Any]] = {
        "Techniques": ["techniques/index.md", *stages, advice],
        "Rules": ["rules/README.md", *kinds],
    }
    for entry in config.nav or []:
        (name,) = entry
        entry[name] = made.get(name, entry[name])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {shown: read(ROOT / source) for source, shown in SHOWN.items()} | {"techniques/index.md": index()}
    pages |= {f"techniques/{page.id}.md": page_markdown(page) for page in techniques}
    pages |= {f"claims/{page.id}.md": page_markdown(page) for page in claims}
    for shown, text in pages.items():
        files.append(File.generated(config, shown, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between files of the repository become links between pages, or text where the target is no page."""
    shown = page.file.src_uri
    source = next((source for source, other in SHOWN.items() if other == shown), f"docs/{shown}")

    def on_site(link: re.Match[str]) -> str:
        text, address, anchor = link.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        if target not in SHOWN and not target.startswith("docs/") and (ROOT / target).exists():
            return text
        target = posixpath.relpath(SHOWN.get(target, target.removeprefix("docs/")), posixpath.dirname(shown))
        return f"[{text}]({target}{anchor})"

    return LINK.sub(on_site, markdown)


def read(path: Path) -> str:
    """Its text; a notebook's cells as Markdown, without what they show."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(f"```python\n{source}\n```" if kind == "code" else source for kind, source in cells)


def index() -> str:
    parts = ["# Techniques", "What `togi tune` tries, by stage, and advice that `togi explain ID --prove` measures."]
    for stage, pages in groupby(techniques, key=lambda page: page.stage):
        parts.append(f"## {stage.value.capitalize()}: {STAGE_MEANING[stage]}\n\n{rows([*pages])}")
    parts.append(f"## Claims\n\n{rows(claims, '../claims/')}")
    return "\n\n".join(parts) + "\n"


def rows(pages: list[TechniquePage] | list[ClaimPage], folder: str = "") -> str:
    lines = [f"| [{page.id}]({folder}{page.id}.md) | {inline_markdown(page.summary)} |" for page in pages]
    return "\n".join(["| name | what it does or says |", "|---|---|", *lines])
