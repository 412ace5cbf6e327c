"""What is stored in a lesson: run once, in order, clean, and compared except where measured."""

import ast
import re

import pytest

from kvlib.teach.build import WIDGET, measured, problems
from tests.notebooks.lessons import NAMES, code_cells, exercise_key, stored
from tests.notebooks.measured import MEASURED

every_lesson = pytest.mark.parametrize("lesson", NAMES)


def test_there_are_lessons():
    assert "00_start_here" in NAMES


@every_lesson
def test_is_run_in_order_without_errors_stderr_paths_or_unmarked_measurements(lesson):
    assert problems(stored(lesson)) == []


@every_lesson
def test_carries_no_metadata_that_changes_from_run_to_run(lesson):
    notebook = stored(lesson)
    assert set(notebook.metadata) <= {"kernelspec", "language_info", "kvlib", "title"}
    assert notebook.metadata.kernelspec["name"] == "python3"
    assert notebook.metadata.language_info == {"name": "python"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "kvlib", "jupyter"}, cell.id


@every_lesson
def test_shows_a_picture_or_text_where_a_widget_was(lesson):
    for cell in code_cells(stored(lesson)):
        for output in cell.outputs:
            assert WIDGET not in output.get("data", {}), cell.id


@every_lesson
def test_has_readable_cell_ids(lesson):
    ids = [cell.id for cell in stored(lesson).cells]
    assert len(ids) == len(set(ids))
    assert not [name for name in ids if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4,})*", name)]


@every_lesson
def test_cells_that_show_something_have_an_output(lesson):
    silent = [
        cell.id
        for cell in code_cells(stored(lesson))
        if not cell.outputs and surely_shows(cell.source)
    ]
    assert silent == [], "stored without their outputs: run `python course.py build`"


@every_lesson
def test_marks_exercises_by_tag_and_key(lesson):
    for cell in stored(lesson).cells:
        tagged = "exercise" in cell.metadata.get("tags", [])
        assert tagged == (exercise_key(cell) is not None), cell.id


def test_only_counted_measurements_escape_the_comparison():
    found = {name: sum(measured(c) is not None for c in code_cells(stored(name))) for name in NAMES}
    found = {name: count for name, count in found.items() if count}
    print(f"measured cells: {sum(found.values())}, {found}")
    assert found == MEASURED, "count new measured cells in tests/notebooks/measured.py"


@every_lesson
def test_no_cell_is_skipped_or_checked_laxly_by_other_means(lesson):
    for cell in code_cells(stored(lesson)):
        tags = set(cell.metadata.get("tags", []))
        assert not tags & {"nbval-skip", "nbval-raises-exception", "raises-exception"}, cell.id
        assert not re.search(r"NBVAL_|PYTEST_VALIDATE", cell.source), cell.id


def surely_shows(source: str) -> bool:
    """Say whether a cell shows something whichever way its branches go."""
    body = ast.parse(re.sub(r"^\s*[%!].*$", "", source, flags=re.M)).body
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
        if not isinstance(last.value, ast.Call | ast.Constant):
            return True
        if isinstance(last.value, ast.Constant) and last.value.value is not ...:
            return last.value.value is not None
    plain = [node for node in body if isinstance(node, ast.Expr)]
    calls = [node.value for node in plain if isinstance(node.value, ast.Call)]
    return any(called(call) in {"print", "display", "show"} for call in calls)


def called(call: ast.Call) -> str:
    """Return the last part of the name that a call calls."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("x", True),
        ("a = 1\na + 1", True),
        ("print(1)", True),
        ("print(1)\nx = 2", True),
        ("plt.show()", True),
        ("x = 1", False),
        ("items.append(1)", False),
        ("def f():\n    print(1)", False),
        ("if x:\n    print(1)", False),
        ("...", False),
        ("", False),
    ],
)
def test_surely_shows(source, shows):
    assert surely_shows(source) is shows
