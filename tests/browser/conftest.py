"""The fixtures of the browser tests: `lab`, a page in a JupyterLab of its own."""

import os
import shutil

import pytest

HOW_TO = (
    "No Chromium: install one (`sudo apt install chromium`, or in .venv "
    "`python -m playwright install chromium`), or set KVLIB_CHROMIUM to its path."
)


def missing(reason):
    """Skip with the reason; under CI a test that did not run is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    """Return a headless Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed: run `python course.py test`.")
    from tests.browser.lab import BROWSER_OPTIONS, browser_path

    with sync_playwright() as playwright:
        path = browser_path(playwright)
        if path is None:
            missing(HOW_TO)
        chromium = playwright.chromium.launch(executable_path=path, args=BROWSER_OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab_server(browser, tmp_path_factory):
    """Return a running JupyterLab over copies of the lessons."""
    from tests.browser.lab import LabServer

    scratch = tmp_path_factory.mktemp("lab")
    server = LabServer(scratch)
    yield server
    server.close()
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def lab(browser, lab_server):
    """Return a fresh page of JupyterLab: `lab.open_notebook("00_start_here")` and so on."""
    from tests.browser.lab import LabPage

    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    yield LabPage(lab_server, context.new_page())
    context.close()


def pytest_collection_modifyitems(items):
    """Mark the browser tests."""
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.browser)
