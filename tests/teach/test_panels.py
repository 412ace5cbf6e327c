"""Panels: stable text where widgets are not shown, and all that happens in the status line."""

import re
import subprocess
import sys

import ipywidgets as widgets
import pytest

from kvlib.teach import exercise, predict, progress, quiz
from kvlib.teach.exercises import all_exercises, define
from kvlib.teach.panel import Panel, code, paragraphs

MAKERS = {
    "predict": lambda: predict("p-number", "How long?", unit="ms"),
    "choices": lambda: predict("p-choice", "Which?", choices=["a", "b"]),
    "reveal": lambda: predict("p-shown", "How many?").reveal(2_001_000, because="T(T+1)/2."),
    "measured": lambda: predict("p-timed", "How long?", unit="ms").reveal(3.1, because="3.1 ms"),
    "exercise": lambda: exercise("01-count-projections"),
    "quiz": lambda: quiz("01"),
    "progress": lambda: progress(),
}
EVERY = pytest.mark.parametrize("name", MAKERS)


def _all_widgets(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _all_widgets(child)


@EVERY
def test_the_text_is_the_same_on_every_run(name, home):
    first = MAKERS[name]()._repr_mimebundle_()
    second = MAKERS[name]()._repr_mimebundle_()
    assert first["text/plain"] == second["text/plain"] == repr(MAKERS[name]())
    assert "application/vnd.jupyter.widget-view+json" in first
    assert str(home) not in first["text/plain"]


@EVERY
def test_a_panel_is_keyboard_and_screen_reader_fit(name):
    panel = MAKERS[name]()
    assert isinstance(panel, widgets.VBox)
    assert "kvlib-panel" in panel._dom_classes
    panel.say("Something happened.")
    assert "Something happened." in panel.status.value and "kvlib-status" in panel.status._dom_classes
    for widget in _all_widgets(panel):
        assert not isinstance(widget, widgets.Output)
        if isinstance(widget, widgets.Button):
            assert widget.description.strip()


def test_a_measured_truth_stays_out_of_the_text():
    shown = MAKERS["measured"]()
    assert "3.1" not in shown.plain()
    assert "3.1 ms" in shown.status.value
    exact = predict("p-exact", "?").reveal(2.5, exact=True)
    assert "2.5" in exact.plain()
    assert "4" not in predict("p-soft", "?").reveal(4, exact=False).plain()


def test_an_exception_in_an_observer_is_shown_in_the_status_line():
    panel = Panel("A panel")

    def fail():
        raise RuntimeError("<no> disk")

    panel.button("Press", fail).click()
    assert "RuntimeError: &lt;no&gt; disk" in panel.status.value


def test_hints_appear_in_turn_and_the_solution_asks_once_more(capsys):
    panel = exercise("01-count-projections")
    shown = [button.layout.display != "none" for button in panel.hint_buttons]
    assert shown == [True, False, False]
    panel.hint_buttons[0].click()
    assert "Hint 1: " in panel.help.value and "Hint 2: " not in panel.help.value
    assert panel.hint_buttons[1].layout.display != "none"
    assert panel.hint_buttons[2].layout.display == "none"
    panel.solution_button.click()
    assert "def counts" not in panel.help.value
    assert "2 hints you have not read" in panel.status.value
    panel.solution_button.click()
    assert "def counts" in panel.help.value
    assert capsys.readouterr().out == ""


def test_hints_and_solution_as_plain_calls(capsys):
    panel = exercise("01-count-projections")
    for number in (1, 2, 3, 3):
        panel.hint()
        assert capsys.readouterr().out.startswith(f"Hint {number} of 3: ")
    panel.hint(1)
    assert capsys.readouterr().out.startswith("Hint 1 of 3: ")
    with pytest.raises(ValueError, match="3 hints"):
        panel.hint(4)
    panel.solution()
    assert capsys.readouterr().out.startswith("def counts(p, n):")


@pytest.mark.parametrize("task", all_exercises(), ids=lambda task: task.key)
def test_an_exercise_shows_its_words(task):
    text = exercise(task.key).plain()
    assert task.title in text
    assert re.search(
        r"Difficulty: (easy|medium|hard)\. Importance: \w+\. About \d+ minutes\.", text
    )
    assert task.solution.strip() not in text


def test_a_solved_exercise_says_so_in_the_panel_and_not_in_the_text():
    before = exercise("01-count-projections")
    before.check(define("counts", before.exercise.solution))
    assert "correct: " in before.status.value
    after = exercise("01-count-projections")
    assert "solved this one before" in after.status.value
    assert after.plain() == before.plain()


def test_text_becomes_html_safely():
    assert paragraphs("a < b `c & d`\n\n- one\n- two") == (
        "<p>a &lt; b <code>c &amp; d</code></p><ul><li>one</li><li>two</li></ul>"
    )
    assert code("if a < b:\n    pass") == "<pre><code>if a &lt; b:\n    pass</code></pre>"


def test_the_registries_import_no_widgets():
    program = (
        "import sys, kvlib.teach, kvlib.teach.exercises, kvlib.teach.quizzes\n"
        "kvlib.teach.exercises.all_exercises(); kvlib.teach.quizzes.of_lesson(0)\n"
        "kvlib.teach.solution_source('01-count-projections')\n"
        "print(sorted({'ipywidgets', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="nothing"):
        import kvlib.teach

        kvlib.teach.nothing  # noqa: B018
