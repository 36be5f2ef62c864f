"""make lab in headless Chromium, as a learner uses it: open files, links and "Run All" of a lesson."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from commands import wait_until
from nbformat.reader import NotJSONError
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tutorial_lib.errors import WaitedTooLong

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
LESSON, NEXT_TO_LAST, LAST = LESSONS[1], LESSONS[-2], LESSONS[-1]
# The lesson takes 26 s and a link 5 s on two idle cores, and 90 s and 40 s beside six busy programs.
RUN_SECONDS, SHOWN_SECONDS = 300, 120
pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--window-size=1500,950",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium on this computer (apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(flag)
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    window.set_page_load_timeout(40)
    window.set_script_timeout(20)
    try:
        yield window
    finally:
        window.quit()


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with a new history, so that the work/ of a learner is unchanged."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    return folder


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start JupyterLab with the program of ``make lab``, without a display, and return its address."""
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home), "JUPYTER_TOKEN": "t"}
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "DGLBACKEND"):
        environment.pop(name, None)
    log = home / "log"
    with log.open("w") as stream:
        command = [sys.executable, str(checkout / "scripts" / "lab.py"), "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        wait_until(lambda: "is running at" in log.read_text(), "JupyterLab listens", SHOWN_SECONDS, process)
        yield f"http://localhost:{port}"
    finally:
        stop_program(process)


def stop_program(process: subprocess.Popen) -> None:
    """End a program and its descendants."""
    started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    _, alive = psutil.wait_procs([psutil.Process(process.pid), *started], timeout=15)
    for each in alive:
        each.kill()
    process.wait(timeout=15)


class Lab:
    """JupyterLab as a learner uses it.

    Args:
        address: of the server.
    """

    def __init__(self, window: webdriver.Chrome, address: str) -> None:
        self.window, self.address = window, address

    def find_visible(self, selector: str, text: str = "") -> list[WebElement]:
        """Return the visible elements that contain a text."""
        found = []
        for each in self.window.find_elements(By.CSS_SELECTOR, selector):
            try:
                if each.is_displayed() and text in each.text:
                    found.append(each)
            except StaleElementReferenceException:  # drawn anew meanwhile
                continue
        return found

    def wait(self, selector: str, text: str = "", seconds: float = SHOWN_SECONDS) -> WebElement:
        return wait_until(lambda: self.find_visible(selector, text), f"{selector} with {text!r} is shown", seconds)[0]

    def open(self, path: str = "") -> None:
        where = f"/lab/workspaces/course/tree/{path}" if path else "/"
        self.window.get(f"{self.address}{where}?token=t")
        self.tab(path.rsplit("/")[-1] or "00_start_here.ipynb")

    def tab(self, name: str) -> None:
        """Wait for the tab in front to have this name."""
        self.wait("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current", name)

    def click(self, selector: str, text: str) -> None:
        self.wait(selector, text).click()

    def open_dialogs(self) -> list[str]:
        """Return the texts of dialogs and notifications."""
        return [each.text for each in self.find_visible(".jp-Dialog, .Toastify__toast")]

    def kernel_status(self) -> str:
        """Return the kernel status of the active notebook."""
        found = self.find_visible(".jp-Notebook-ExecutionIndicator, .jp-KernelName")
        return " ".join(each.get_attribute("data-status") or each.text for each in found)

    def click_link(self, path: str) -> None:
        """Click the link to a file of the repository in the active notebook."""
        link = f".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook a[href*='/files/{path}']"
        found = wait_until(lambda: self.window.find_elements(By.CSS_SELECTOR, link), link, SHOWN_SECONDS)[-1]
        self.window.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        wait_until(found.is_displayed, f"the link to {path} is shown", SHOWN_SECONDS)
        found.click()


@pytest.fixture
def lab(browser: webdriver.Chrome, server: str) -> Lab:
    return Lab(browser, server)


def test_lesson_00_opens_with_table_of_contents(lab):
    lab.open()
    lab.wait(".jp-Notebook h1")
    lab.wait(".jp-TableOfContents .jp-tocItem")
    assert lab.open_dialogs() == []


def test_links_at_end_of_lesson_open_their_targets(lab):
    lab.open(f"work/{NEXT_TO_LAST}")
    lab.click_link(f"work/{LAST}")
    lab.tab(LAST)
    solution = LAST.replace(".ipynb", "_solution.ipynb")
    lab.click_link(f"work/solutions/{solution}")
    lab.tab(solution)
    lab.click_link(f"work/{LAST}")  # and back
    lab.tab(LAST)
    lab.click_link("README.md")
    lab.tab("README.md")
    lab.wait(".jp-MarkdownViewer h1", "Distributed GNN training with DGL")


def code_cells(notebook: Path) -> list[Any]:
    """Read a notebook that JupyterLab may be saving at this moment."""

    def cells() -> list[Any] | None:
        with contextlib.suppress(NotJSONError):
            return [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
        return None

    return wait_until(cells, "the notebook is saved", SHOWN_SECONDS)


def test_run_all_completes_and_leaves_checkout_unchanged(lab, checkout):
    notebook = checkout / "work" / LESSON
    # A kernel that is starting sometimes loses messages. The cells then stay [*], although the kernel is idle.
    # JupyterLab can also miss the message that a new kernel is idle. A reload asks for the state again.
    for seconds in (SHOWN_SECONDS / 2, SHOWN_SECONDS):
        lab.open(f"work/{LESSON}")
        lab.wait(".jp-NotebookPanel:not(.lm-mod-hidden) h1")
        with contextlib.suppress(WaitedTooLong):
            wait_until(lambda: lab.kernel_status().endswith("idle"), "the kernel is idle", seconds)
            break
    assert lab.kernel_status().endswith("idle")
    lab.click(".lm-MenuBar-itemLabel", "Run")
    lab.click(".lm-Menu-itemLabel", "Run All Cells")

    def waiting() -> bool:
        """Whether the saved notebook has a cell that has not run."""
        lab.window.find_element(By.CSS_SELECTOR, "body").send_keys(Keys.CONTROL, "s")
        time.sleep(0.5)
        assert lab.open_dialogs() == []  # a dialog would keep the notebook from being saved
        return any(cell.execution_count is None for cell in code_cells(notebook))

    wait_until(waiting, "the first cell runs", SHOWN_SECONDS)
    wait_until(lambda: not waiting(), "the last cell has run", RUN_SECONDS)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        wrong = [output for output in cell.outputs if output.output_type == "error"]
        assert not wrong or "raises-exception" in cell.metadata.get("tags", []), wrong
    assert lab.open_dialogs() == []
    assert git(checkout, "status", "--short") == ""
