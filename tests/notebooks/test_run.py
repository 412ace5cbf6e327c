"""Every lesson runs with its exercises solved, then as stored, then in other orders, in one kernel.

That it runs as stored in a kernel of its own, with the stored outputs, is nbval's part.
`KVLIB_ORDERS=3` tries three other orders instead of one.
"""

import os
import random
import re

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from kvlib.teach import solution_source
from kvlib.teach.build import execute
from tests.notebooks.lessons import FOLDER, NAMES, code_cells, exercise_key, stored

ORDERS = int(os.environ.get("KVLIB_ORDERS", "1"))
SENTENCE = re.compile(r"[A-Z`\"'(].*[.?!)]", re.S)

ALL_SOLVED = """
from kvlib.teach.exercises import CORRECT
from kvlib.teach.store import progress_file
kept = {{key: progress_file().get("exercises", key).get("status") for key in {keys}}}
assert all(status == CORRECT for status in kept.values()), kept
"""


@pytest.mark.slow
@pytest.mark.timeout(600 + 300 * ORDERS)
@pytest.mark.parametrize("lesson", NAMES)
def test_runs_solved_then_as_stored_then_in_any_order(lesson):
    cells = code_cells(stored(lesson))
    keys = [key for cell in cells if (key := exercise_key(cell))]
    runs = [solved(cell) for cell in cells]
    if keys:
        runs.append(ALL_SOLVED.format(keys=keys))
    runs += [cell.source for cell in cells]
    in_order = len(runs)
    shuffler = random.Random(lesson)  # the same orders on every run
    for _ in range(ORDERS):
        runs += [cell.source for cell in shuffler.sample(cells, len(cells))]
    notebook = new_notebook(cells=[new_code_cell(source) for source in runs])
    for cell in notebook.cells[in_order:]:
        cell.metadata["tags"] = ["raises-exception"]  # a sentence is allowed there
    execute(notebook, FOLDER)  # raises with the cell and its traceback
    assert noise(notebook.cells) == {}
    assert unclear(notebook.cells) == {}


def solved(cell) -> str:
    """Return a cell's source, the solution's where the learner is to write one."""
    key = exercise_key(cell)
    return solution_source(key) if key else cell.source


def noise(cells) -> dict[str, str]:
    """Return what cells wrote to stderr, by their source."""
    outputs = [(cell.source, output) for cell in cells for output in cell.outputs]
    return {source: output.text for source, output in outputs if output.get("name") == "stderr"}


def unclear(cells) -> dict[str, str]:
    """Return errors that do not tell a learner what to do, by the source of their cell."""
    outputs = [(cell.source, output) for cell in cells for output in cell.outputs]
    errors = [(source, output) for source, output in outputs if output.output_type == "error"]
    return {source: f"{e.ename}: {e.evalue}" for source, e in errors if not is_clear(e.ename, e.evalue)}


def is_clear(name: str, message: str) -> bool:
    """Say whether an error is meant for the learner: a refusal in a sentence, no stumble of Python."""
    return name in ("ValueError", "AssertionError") and SENTENCE.fullmatch(message) is not None


@pytest.mark.parametrize(
    ("name", "message", "clear"),
    [
        ("ValueError", "The cache holds 8 tokens, and 9 do not fit.", True),
        ("AssertionError", "Run the cell that measures first.", True),
        ("AssertionError", "", False),
        ("NameError", "name 'scores' is not defined", False),
        ("TypeError", "'NoneType' object is not callable", False),
        ("ValueError", "operands could not be broadcast together with shapes (2,) (3,) ", False),
        ("RuntimeError", "The size of tensor a (3) must match the size of tensor b (4).", False),
    ],
)
def test_is_clear(name, message, clear):
    assert is_clear(name, message) is clear
