"""The account as one HTML file: safe, offline, the same bytes for the same account, and alive in a browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from togi.footprint.account.record import (
    Account,
    Category,
    CategoryTimeline,
    HeldName,
    Holding,
    KeptStorage,
    PeakMoment,
)
from togi.render.html import account_html
from togi.render.html.memory_pages import tree

HOSTILE = "<script>alert(1)</script>"
MIB = 2**20
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


def account(name: str = "model") -> Account:
    weights = Holding(bytes=30 * MIB, blocks=3, category=Category.PARAMETER, module="layer1.0")
    kept = Holding(
        bytes=10 * MIB,
        blocks=1,
        category=Category.ACTIVATION,
        module="layer1.1",
        line=f"{name}.py:3 in f",
        op="aten.mm",
    )
    return Account(
        subject=name,
        peak_bytes=40 * MIB,
        baseline_bytes=30 * MIB,
        peak=PeakMoment(op="aten.mm", module="layer1.1", line=f"{name}.py:3 in f", phase="forward"),
        holdings=(weights, kept),
        kept=(KeptStorage(bytes=10 * MIB, kept_by=(f"Mm.{name}",), category=Category.ACTIVATION),),
        held_names=(HeldName(name="lt", line=f"{name}.py:9 in f", bytes=MIB, saved_bytes=MIB),),
        minimum_bytes=32 * MIB,
        timeline=CategoryTimeline(
            ms=(0.0, 1.0, 2.0),
            bytes={Category.PARAMETER: (30 * MIB,) * 3, Category.ACTIVATION: (0, 10 * MIB, 2 * MIB)},
        ),
        notes=(name,),
    )


def test_same_account_gives_the_same_bytes_and_loads_nothing() -> None:
    page = account_html(account())
    assert page == account_html(account())
    assert not re.search(r"@import|url\(|https?://", page)
    assert "del lt before model.py:9 in f lowers the peak by 1.00 MiB." in page


def test_hostile_names_are_escaped() -> None:
    page = account_html(account(HOSTILE))
    assert HOSTILE not in page
    assert page.count("<script>") == 1


def test_tree_sums_what_lies_below() -> None:
    root = tree(account().holdings)
    layer = root.children["layer1"]
    assert (root.bytes, layer.bytes) == (40 * MIB, 40 * MIB)
    assert {name: child.bytes for name, child in layer.children.items()} == {"0": 30 * MIB, "1": 10 * MIB}
    assert layer.by_category == {Category.PARAMETER: 30 * MIB, Category.ACTIVATION: 10 * MIB}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed")
def test_pointing_at_a_moment_reads_what_was_alive(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    file = tmp_path / "memory.html"
    file.write_text(account_html(account()), encoding="utf-8")
    browser.get(file.as_uri())
    area = browser.find_element("css selector", ".timeline .area")
    ActionChains(browser).move_to_element_with_offset(area, 10, 0).perform()
    hint = browser.find_element("id", "hint")
    assert hint.text.splitlines() == ["1.0 ms: 40.0 MiB", "10.0 MiB activation", "30.0 MiB parameter"]
    box = browser.find_elements("css selector", ".icicle .box")[1]
    ActionChains(browser).move_to_element(box).perform()
    assert hint.text.startswith("layer1: 40.0 MiB, 100.0%")
    assert browser.get_log("browser") == []


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed")
def test_on_a_phone_tables_stay_tables_and_scroll(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "memory.html"
    file.write_text(account_html(account()), encoding="utf-8")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        browser.get(file.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
        row = browser.find_element("css selector", "table.plain tbody tr").find_elements("css selector", "td")
        assert len({cell.rect["y"] for cell in row}) == 1
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
