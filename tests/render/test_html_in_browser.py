"""The report in a real browser: it must work there, and ask the network for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.render.made_up_study import hostile_study, made_up_study
from togi.render.html import study_html
from togi.render.rows import rows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    file = tmp_path / "report.html"
    file.write_text(study_html(made_up_study()), encoding="utf-8")
    return _open(browser, file)


def _open(browser: Any, file: Path) -> Any:
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(file.as_uri())
    return browser


def _all(page: Any, selector: str) -> list[Any]:
    return list(page.find_elements("css selector", selector))


def _requests(page: Any) -> list[str]:
    messages = (json.loads(entry["message"])["message"] for entry in page.get_log("performance"))
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def test_no_console_message_and_no_request_but_the_file(page: Any) -> None:
    urls = _requests(page)
    assert len(urls) == 1
    assert urls[0].startswith("file://")
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_rows_are_recipes(page: Any) -> None:
    assert len(_all(page, "#trials tbody")) == len(rows(made_up_study()))


def test_sorting_orders_both_ways_and_keeps_unmeasured_last(page: Any) -> None:
    button = _all(page, "[data-sort=speedup]")[0]
    for sign, state in ((1, "ascending"), (-1, "descending")):
        page.execute_script("arguments[0].click()", button)
        assert button.find_element("xpath", "..").get_attribute("aria-sort") == state
        values = [body.get_attribute("data-speedup") for body in _all(page, "#trials tbody")]
        measured = [float(value) for value in values if value is not None]
        assert len(measured) == 11
        assert measured == sorted(measured, key=lambda value: sign * value)
        assert all(value is None for value in values[len(measured) :])


def test_details_open_and_close(page: Any) -> None:
    button = _all(page, "#trials .open")[0]
    details = page.find_element("id", button.get_attribute("aria-controls"))
    assert not details.is_displayed()
    button.click()
    assert details.is_displayed()
    assert "24 rounds" in details.text
    assert button.get_attribute("aria-expanded") == "true"
    button.click()
    assert not details.is_displayed()


def test_a_point_leads_to_its_trial_and_shows_a_hint(page: Any) -> None:
    point = _all(page, ".point.chosen")[0]
    page.execute_script("arguments[0].focus()", point)
    assert "58.9 MiB idle" in page.find_element("id", "hint").text
    page.execute_script("arguments[0].click()", point)
    body = page.find_element("id", f"trial-{point.get_attribute('data-trial')}")
    assert "shown" in body.get_attribute("class")


def test_filters_hide_an_outcome(page: Any) -> None:
    button = _all(page, '.filters [data-outcome="refused"]')[0]
    row = _all(page, '#trials tbody[data-outcome="refused"]')[0]
    assert row.is_displayed()
    page.execute_script("arguments[0].click()", button)
    assert not row.is_displayed()


def test_fits_the_width_of_a_phone(page: Any) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 380
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_hostile_text_is_only_text(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(study_html(hostile_study()), encoding="utf-8")
    page = _open(browser, file)
    assert page.title.startswith("togi: <script>")
    assert _all(page, "img") == []
    assert len(_requests(page)) == 1
    assert page.get_log("browser") == []
