"""Every lesson runs with its exercises solved, and then twice as stored, in one kernel.

That it runs as stored in a kernel of its own, with the stored outputs, is nbval's part.
"""

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from kvlib.teach import solution_source
from kvlib.teach.build import execute
from tests.notebooks.lessons import FOLDER, NAMES, code_cells, exercise_key, stored

ALL_SOLVED = """
from kvlib.teach.exercises import CORRECT
from kvlib.teach.store import progress_file
kept = {{key: progress_file().get("exercises", key).get("status") for key in {keys}}}
assert all(status == CORRECT for status in kept.values()), kept
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", NAMES)
def test_runs_solved_and_then_twice_as_stored(lesson):
    cells = code_cells(stored(lesson))
    keys = [key for cell in cells if (key := exercise_key(cell))]
    runs = [solved(cell) for cell in cells]
    if keys:
        runs.append(ALL_SOLVED.format(keys=keys))
    runs += [cell.source for cell in cells] * 2
    notebook = new_notebook(cells=[new_code_cell(source) for source in runs])
    execute(notebook, FOLDER)  # raises with the cell and its traceback
    noisy = {
        cell.source: output.text
        for cell in notebook.cells
        for output in cell.outputs
        if output.get("name") == "stderr"
    }
    assert noisy == {}


def solved(cell) -> str:
    """Return a cell's source, the solution's where the learner is to write one."""
    key = exercise_key(cell)
    return solution_source(key) if key else cell.source
