"""A JupyterLab server of its own and a page in it, for tests in a real browser."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from course import server_config
from kvlib.model_file import model_home

ROOT = Path(__file__).resolve().parents[2]
SERVER_START_S = 60
CELL_RUN_S = 300
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SETTINGS = """{
  "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false},
  "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}
}"""


def browser_path(playwright) -> str | None:
    """Return a Chromium: $KVLIB_CHROMIUM, one on the PATH, or Playwright's own; None if none."""
    named = os.environ.get("KVLIB_CHROMIUM")
    found = [named] if named else [shutil.which(name) for name in BROWSERS]
    own = playwright.chromium.executable_path
    return next((path for path in [*found, own] if path and Path(path).exists()), None)


class LabServer:
    """JupyterLab on a free port, over copies of the lessons, with nobody's settings or progress."""

    def __init__(self, scratch: Path):
        self.root = scratch / "course"
        ignore = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        for name in ("notebooks", "assets"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=ignore)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.token = secrets.token_hex(16)
        self.log = scratch / "jupyterlab.log"
        settings = scratch / "app-settings"
        settings.mkdir()
        (settings / "overrides.json").write_text(SETTINGS)
        homes = {
            name: str(scratch / name.lower())
            for name in (
                "JUPYTER_CONFIG_DIR",
                "JUPYTER_DATA_DIR",
                "JUPYTER_RUNTIME_DIR",
                "JUPYTERLAB_SETTINGS_DIR",
                "JUPYTERLAB_WORKSPACES_DIR",
                "IPYTHONDIR",
                "KVLIB_HOME",
            )
        }
        homes["KVLIB_MODEL_HOME"] = str(model_home())
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={self.port}"]
        command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"]
        command += [f"--ServerApp.root_dir={self.root}", f"--LabApp.app_settings_dir={settings}"]
        config = Path(homes["JUPYTER_CONFIG_DIR"])
        config.mkdir()
        (config / "jupyter_server_config.py").write_text(server_config(ROOT))
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--allow-root")
        with self.log.open("w") as log:
            self.environment = {**os.environ, **homes}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        self._wait()

    def url(self, path: str = "") -> str:
        """Return the address of a file in a workspace of its own, so that tabs do not pile up."""
        workspace = secrets.token_hex(4)
        base = f"http://127.0.0.1:{self.port}/lab/workspaces/{workspace}"
        return f"{base}/tree/{path}?token={self.token}"

    def path(self, name: str) -> Path:
        """Return the file of a notebook."""
        return self.root / "notebooks" / f"{name}.ipynb"

    def trust(self, name: str) -> None:
        """Sign a notebook, as running all its cells does: its HTML is shown with its styles."""
        command = [sys.executable, "-m", "jupyter", "trust", str(self.path(name))]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def end_kernels(self) -> None:
        """End every kernel, as a restart of the machine does."""
        sessions = f"http://127.0.0.1:{self.port}/api/sessions"
        headers = {"Authorization": f"token {self.token}"}
        with urllib.request.urlopen(urllib.request.Request(sessions, headers=headers)) as answer:
            running = json.load(answer)
        for session in running:
            end = urllib.request.Request(f"{sessions}/{session['id']}", headers=headers, method="DELETE")
            urllib.request.urlopen(end).close()

    def close(self) -> None:
        """End the server and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + SERVER_START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api", timeout=2).close()
                return
            except OSError:
                time.sleep(0.2)
        self.close()
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()[-3000:]}")


class LabPage:
    """One browser page of JupyterLab; `page` is Playwright's, for all that is not here."""

    def __init__(self, server: LabServer, page):
        self.server, self.page = server, page
        page.set_default_timeout(30_000)

    def open_notebook(self, name: str) -> None:
        """Open a lesson (`00_start_here`) and wait until its kernel is usable."""
        self.page.goto(self.server.url(f"notebooks/{name}.ipynb"))
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.wait_idle()

    def wait_idle(self, timeout_s: float = CELL_RUN_S) -> None:
        """Wait until the status bar calls the kernel idle (the indicator says it too soon)."""
        status = self.page.locator("#jp-main-statusbar")
        status.get_by_text(re.compile(r"\| Idle")).wait_for(timeout=timeout_s * 1000)

    def run_all(self, timeout_s: float = CELL_RUN_S) -> None:
        """Run every cell, again if JupyterLab lost the request, and wait for the last one."""
        for _ in range(3):
            self._menu("Run", "Run All Cells")
            try:
                self.page.wait_for_function(STARTED, timeout=10_000)
                break
            except Exception as error:  # Playwright's own class needs Playwright to be imported
                if "Timeout" not in type(error).__name__:
                    raise
        self.page.wait_for_function(FINISHED, timeout=timeout_s * 1000)
        self.wait_idle(timeout_s)

    def errors(self) -> list[str]:
        """Return the text of every error that a cell shows."""
        selector = ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr'], "
        selector += ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']"
        return self.page.locator(selector).all_inner_texts()

    def panel(self, css: str = ".kvlib-panel"):
        """Return the first panel with a CSS class, scrolled into view."""
        panel = self.page.locator(css).first
        panel.wait_for()
        panel.scroll_into_view_if_needed()
        return panel

    def clip(self, locator) -> dict:
        """Return a locator's place on the page, for `screenshot`."""
        locator.scroll_into_view_if_needed()
        return locator.bounding_box()

    def screenshot(self, clip: dict, path: Path | None = None) -> bytes:
        """Return a PNG of a part of the page (the page itself, not the element, so it is quick)."""
        return self.page.screenshot(clip=clip, path=path, animations="disabled")

    def wait_until_changed(self, clip: dict, before: bytes, timeout_s: float = 10) -> float:
        """Return the seconds until the clip differs from `before`; AssertionError if never."""
        start = time.perf_counter()
        while time.perf_counter() - start < timeout_s:
            if self.screenshot(clip) != before:
                return time.perf_counter() - start
        raise AssertionError(f"Nothing changed in {timeout_s} s.")

    def theme(self, name: str) -> None:
        """Switch to "dark" or "light"."""
        self._menu("Settings", "Theme", f"JupyterLab {name.capitalize()}")
        light = str(name == "light").lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")

    def save(self) -> None:
        """Save the notebook and wait until it is on the disk."""
        self._menu("File", "Save Notebook")
        self.page.wait_for_selector(".jp-mod-dirty", state="detached")

    def violations(self, css: str) -> list[str]:
        """Return what axe-core finds critical or serious within elements of a CSS class."""
        import axe_playwright_python

        source = Path(axe_playwright_python.__file__).with_name("axe.min.js")
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(source.read_text("utf-8"))
        found = self.page.evaluate("css => axe.run({include: css}, {resultTypes: ['violations']})", css)
        assert found["passes"], f"axe looked at nothing in {css}"
        return [
            f"{rule['id']} ({rule['impact']}): {node['html'][:200]}"
            for rule in found["violations"]
            if rule["impact"] in ("critical", "serious")
            for node in rule["nodes"]
        ]

    def _menu(self, *names: str) -> None:
        """Click through a menu of the menu bar."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{names[0]}$")).click()
        for name in names[1:]:
            label = self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{name}$")).last
            label.hover()
            if name == names[-1]:
                label.click()


_PROMPTS = """[...document.querySelectorAll('.jp-Notebook .jp-CodeCell')].filter(
    cell => cell.querySelector('.cm-content')?.innerText.trim()).map(
    cell => cell.querySelector('.jp-InputPrompt').innerText.trim())"""
STARTED = f"""() => {{
    const now = {_PROMPTS};
    const before = window.kvlibPrompts ??= now.join();
    return now.some(prompt => prompt.includes('*')) || now.join() !== before;
}}"""
FINISHED = f"() => {_PROMPTS}.every(prompt => /^\\[\\d+\\]:?$/.test(prompt))"
