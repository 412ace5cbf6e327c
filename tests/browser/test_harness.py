"""The harness itself: it opens a notebook, runs it once, sees pixels change and switches themes."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

BUTTON = """
import ipywidgets as widgets
box = widgets.HTML("<div style='width:200px;height:100px;background:#0072B2'></div>")
button = widgets.Button(description="Change")
button.on_click(lambda _: setattr(box, "value", box.value.replace("0072B2", "D55E00")))
panel = widgets.VBox([box, button])
panel.add_class("kvlib-panel")
panel
"""


@pytest.mark.timeout(180)
def test_runs_a_notebook_sees_change_and_switches_themes(lab):
    notebook = new_notebook(cells=[new_code_cell("print('ran')"), new_code_cell(BUTTON)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    path = lab.server.root / "notebooks" / "harness.ipynb"
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)
    lab.open_notebook("harness")
    lab.run_all()
    assert lab.errors() == []
    panel = lab.panel()
    clip = lab.clip(panel.locator("div[style*='width:200px']"))
    before = lab.screenshot(clip)
    panel.get_by_role("button", name="Change").click()
    assert lab.wait_until_changed(clip, before) < 10
    lab.theme("dark")
    lab.theme("light")
