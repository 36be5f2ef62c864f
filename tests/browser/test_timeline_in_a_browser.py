"""The timeline's page as a file in headless Chromium: its tracks, zoom by the wheel, and nothing from the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By

from tutorial_lib.job.timeline import Timeline

pytestmark = pytest.mark.browser


def requests_of(window: webdriver.Chrome) -> list[str]:
    """Addresses that were asked for since the last call."""
    messages: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in window.get_log("performance")
    ]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def test_the_page_of_a_run(browser: webdriver.Chrome, finished_run, tmp_path: Path):
    page = tmp_path / "trace.html"
    page.write_text(Timeline.of(finished_run.out).page())
    browser.get("about:blank")
    requests_of(browser)
    browser.get(page.as_uri())
    everything = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
    names = browser.execute_script(everything, ".timeline .name")
    for name in ("coordinator", "machine-0", "rank 0", "rank 0, batches", "server 0", "machine-1", "rank 1"):
        assert name in names
    (picture,) = browser.find_elements(By.CSS_SELECTOR, ".timeline svg")
    texts = browser.execute_script(everything, ".timeline rect title")
    for begin in ("forward", "backward", "epoch 1", "step 1", "evaluation", "serving", "all-reduce"):
        assert any(text.startswith(begin) for text in texts), begin
    assert len(picture.find_elements(By.CSS_SELECTOR, "polygon.bytes")) == 2
    assert picture.size["width"] > 800

    def seen() -> list[float]:
        text = browser.execute_script("return arguments[0].getAttribute('viewBox')", picture)
        return [float(number) for number in text.split()]

    left, _, whole, height = seen()
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(picture), 0, -120).perform()
    assert seen()[2] == pytest.approx(0.8 * whole)
    assert seen()[0] == pytest.approx(0.1 * whole, abs=0.01 * whole)  # the middle stays where it is
    ActionChains(browser).double_click(picture).perform()
    assert seen() == [left, 0, whole, height]
    rule = "body svg {max-width: 100%; height: auto}"  # as JupyterLab has it for what is below a cell
    browser.execute_script(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: arguments[0]}))", rule
    )
    assert picture.size["height"] == pytest.approx(height, abs=1)  # the names beside it stay beside their tracks
    assert [url for url in requests_of(browser) if not url.startswith(("chrome", "data:"))] == [page.as_uri()]
