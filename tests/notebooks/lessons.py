"""The lessons as the tests see them."""

from functools import cache
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@cache
def stored(name: str):
    """Return a lesson as it is stored (do not change it)."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook) -> list:
    """Return a notebook's code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def exercise_key(cell) -> str | None:
    """Return the key of the exercise that a learner solves in this cell, or None."""
    return cell.metadata.get("kvlib", {}).get("exercise")
