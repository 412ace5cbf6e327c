"""What the Jupyter server of the course saves of a panel."""

import subprocess
import sys
from pathlib import Path

import pytest

from course import server_config
from kvlib.lab.saving import AGAIN, WIDGET, keep_pictures

ROOT = Path(__file__).resolve().parents[2]


def saved(data: dict, metadata: dict | None = None) -> dict:
    """Return an output's data after saving, `data` being what the cell shows."""
    output = {"output_type": "display_data", "metadata": {}, "data": dict(data)}
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": [{"text": "a"}, output]}]
    content = {"cells": cells, "metadata": metadata or {}}
    keep_pictures(model={"type": "notebook", "content": content}, path="a.ipynb", contents_manager=None)
    return output["data"]


def test_a_picture_stays_and_its_dead_widget_goes():
    data = {WIDGET: {"model_id": "1"}, "text/html": "<img>", "text/plain": "A panel."}
    assert saved(data) == {"text/html": "<img>", "text/plain": "A panel."}


def test_a_panel_without_a_picture_says_how_to_get_it_back():
    expected = {"text/plain": f"1. Why?\n   A. So.\n\n{AGAIN}"}
    assert saved({WIDGET: {"model_id": "1"}, "text/plain": "1. Why?\n   A. So."}) == expected
    assert saved({WIDGET: {"model_id": "1"}, "text/plain": ["1. Why?\n", "   A. So."]}) == expected
    assert saved(expected) == expected  # saved again, it stays as it is


@pytest.mark.parametrize("metadata", [{}, {"widgets": {"application/vnd.jupyter.widget-state+json": {}}}])
def test_what_has_nothing_else_or_is_saved_with_its_state_stays(metadata):
    alone = {WIDGET: {"model_id": "1"}}
    assert saved(alone, metadata) == alone
    both = {**alone, "text/plain": "A panel."}
    assert (saved(both, metadata) == both) is bool(metadata)


@pytest.mark.parametrize("model", [{"type": "file", "content": "a"}, {"type": "notebook", "content": None}])
def test_other_files_are_left_alone(model):
    before = dict(model)
    keep_pictures(model=model)
    assert model == before


def test_the_server_loads_no_pytorch_with_it():
    lines = ["import sys, types", "c = types.SimpleNamespace(ContentsManager=types.SimpleNamespace())"]
    lines += [server_config(ROOT), "assert callable(c.ContentsManager.pre_save_hook)"]
    lines += ["assert not {'torch', 'kvlib'} & set(sys.modules)"]
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)]).returncode == 0
