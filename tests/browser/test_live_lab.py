"""The live lab in JupyterLab: every toggle changes picture and words, by mouse and by keyboard."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

CELL = "from kvlib.lab import LiveLab\nlab = LiveLab(device='cpu', dtype='float32', context=128)\nlab"
WAIT_MS = 120_000  # on a machine with ten other programs
LOADS = "() => { window.loads = 0; [...document.querySelectorAll('.kvlib-lab img')].at(-1).addEventListener("
LOADS += "'load', () => window.loads++); }"


@pytest.fixture
def panel(lab):
    """Return the panel, its first point measured."""
    notebook = new_notebook(cells=[new_code_cell(CELL)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    path = lab.server.root / "notebooks" / "live_lab.ipynb"
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)
    lab.open_notebook("live_lab")
    lab.run_all()
    assert lab.errors() == []
    panel = lab.panel(".kvlib-lab")
    says(panel, "GQA (3 KV heads for 9 query heads).* 128 tokens.*One decode step took")
    return panel


def says(panel, pattern: str) -> None:
    """Wait until the status line matches."""
    words = re.compile(pattern.replace("(", r"\(").replace(")", r"\)"))
    panel.get_by_role("status").filter(has_text=words).wait_for(timeout=WAIT_MS)


@pytest.mark.timeout(600)
def test_toggles_sweep_and_themes(lab, panel):
    picture = panel.locator("img").first
    clip = lab.clip(panel.locator(".kvlib-parts"))
    assert clip["width"] > 600
    assert panel.get_by_role("button", name="MQA").bounding_box()["y"] < clip["y"]

    for kind, heads in (("MHA", "9 KV heads"), ("MQA", "1 KV head"), ("GQA", "3 KV heads")):
        before = lab.screenshot(clip)
        panel.get_by_role("button", name=kind, exact=True).click()
        lab.wait_until_changed(clip, before, 30)
        says(panel, f"{kind} ({heads} for.*One decode step took")

    lab.page.evaluate(LOADS)  # what is measured is drawn once for each toggle, and not again
    panel.get_by_role("button", name="MHA", exact=True).click()
    lab.page.wait_for_function("() => window.loads > 0")
    lab.page.wait_for_timeout(1000)
    assert lab.page.evaluate("() => window.loads") == 1

    panel.get_by_role("button", name="MQA", exact=True).focus()  # the keyboard reaches it
    lab.page.keyboard.press("Space")
    says(panel, "MQA (1 KV head")
    panel.get_by_label("Batch").select_option("2")
    says(panel, "2 sequences.*One decode step took")
    panel.get_by_label("Batch").select_option("1")
    panel.get_by_label("Model shape").select_option("Llama 3.1 405B")
    says(panel, "Not measured: it would need")
    panel.get_by_label("Model shape").select_option("SmolLM2 135M")
    says(panel, "SmolLM2 135M.*One decode step took")

    panel.get_by_role("button", name="Measure sweep").click()
    stop = panel.get_by_role("button", name="Stop")
    lab.page.wait_for_function(
        "() => ![...document.querySelectorAll('.kvlib-lab button')]"
        ".find(b => b.innerText.trim() === 'Stop').disabled"
    )
    stop.click()
    lab.page.wait_for_function(
        "() => [...document.querySelectorAll('.kvlib-lab button')]"
        ".find(b => b.innerText.trim() === 'Stop').disabled",
        timeout=WAIT_MS,
    )

    lab.theme("dark")
    assert picture.evaluate("image => getComputedStyle(image).filter").startswith("invert")
    lab.theme("light")
    assert picture.evaluate("image => getComputedStyle(image).filter") == "none"
