"""The site is built strictly: links and anchors lead somewhere, every page is in the menu, all is loaded from here."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import togi
from togi.claims import all_claims
from togi.lint.rule import all_rules
from togi.techniques import all_remedies

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Loads(html.parser.HTMLParser):
    """What a browser fetches for a page beside the page itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses += filter(None, [given.get("src")])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.addresses += filter(None, [given.get("href")])


@pytest.mark.thorough
def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = [Loads(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")]
    loaded = {address for page in pages for address in page.addresses}
    assert any(address.endswith(".css") for address in loaded)
    assert not {address for address in loaded if address.startswith(("http:", "https:", "//"))}


def test_every_technique_rule_and_claim_has_a_page(site: Path) -> None:
    for folder, ids in (("techniques", all_remedies()), ("rules", all_rules()), ("claims", all_claims())):
        assert {path.stem for path in (site / folder).glob("*.html")} - {"index"} == {*ids}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    names = {*togi.__all__} - {"__version__"}
    assert not {name for name in names if f'id="togi.{name}"' not in page}
    # a function that has the name of its module is there by its full name
    assert not {name for name in togi.ops.__all__ if not re.search(rf'id="togi\.ops\.({name}\.)?{name}"', page)}
