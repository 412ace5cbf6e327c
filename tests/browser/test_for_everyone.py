"""Panels and figures in JupyterLab: by keyboard, screen reader, in the dark, in a narrow window, reopened."""

import io

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

from kvlib.lab.saving import AGAIN
from tests.browser.lab import LabPage
from tests.notebooks.lessons import NAMES

FIGURE = """
import numpy as np
from kvlib.lab import style
figure = style.new_figure(900, 300)
axes = figure.add_subplot()
for kind in style.KINDS:
    axes.plot(np.arange(9) ** 2, color=style.COLORS[kind], marker=style.MARKERS[kind])
style.Picture(figure, "Three parabolas.")
"""
PANELS = {
    "lab": "from kvlib.lab import LiveLab\nLiveLab(device='cpu', dtype='float32', measure=False)",
    "filling": "from kvlib.lab.filling import FillingPanel\nq, k, v = np.random.rand(3, 2, 5, 4)\n"
               "FillingPanel('the cat sat down here'.split(), q, k, v, prefill=3)",
    "memory": "from kvlib.lab.memory_panel import MemoryPanel\nMemoryPanel()",
    "sharing": "from kvlib.lab.sharing import SharingPanel\nSharingPanel()",
    "crossover": "from kvlib.lab.crossover import CrossoverPanel\nCrossoverPanel(device='H100 SXM')",
    "appending": "from kvlib.lab.appending import AppendingPanel\nAppendingPanel()",
    "softmax": "from kvlib.lab.online_softmax import OnlineSoftmaxPanel\n"
               "OnlineSoftmaxPanel(list('abcdefghi'), np.arange(9.0), np.random.rand(9, 4))",
    "smaller": "from kvlib.lab.smaller import SmallerPanel\n"
               "from kvlib.teach.course_model import random_model\n"
               "SmallerPanel(random_model(), list(range(60)))",
    "quiz": "from kvlib.teach import exercise, predict, progress, quiz\nquiz('01')",
    "exercise": "exercise('01-count-projections')",
    "guess": "predict('browser-guess', 'Which?', choices=['this one', 'that one'])",
    "number": "predict('browser-number', 'How long?', unit='ms')",
    "progress": "progress()",
}  # fmt: skip
PICTURED = [f".kvlib-{name}" for name in list(PANELS)[:8]]


def write(server, name, *sources) -> None:
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    server.path(name).parent.mkdir(exist_ok=True)
    nbformat.write(notebook, server.path(name))


@pytest.fixture(scope="module")
def panels(browser, lab_server):
    """Return a page at 1400 pixels that shows a figure and every panel, run once for all tests."""
    write(lab_server, "panels", FIGURE, *PANELS.values())
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    lab = LabPage(lab_server, context.new_page())
    lab.open_notebook("panels")
    lab.run_all()
    assert lab.errors() == []
    lab.page.wait_for_function(
        f"() => document.querySelectorAll('.kvlib-panel').length === {len(PANELS)} && "
        "[...document.querySelectorAll('.kvlib-panel img')].every(i => i.alt && i.naturalWidth)"
    )
    yield lab
    context.close()


@pytest.fixture(autouse=True)
def wide(request):
    """Give every test the shared page as it opened: light and 1400 pixels wide."""
    yield
    if "panels" in request.fixturenames:
        lab = request.getfixturevalue("panels")
        lab.page.set_viewport_size({"width": 1400, "height": 1000})
        if lab.page.locator("body[data-jp-theme-light='false']").count():
            lab.theme("light")


@pytest.mark.timeout(400)
def test_axe_finds_nothing_in_any_panel(panels):
    for theme in ("light", "dark"):
        if theme == "dark":
            panels.theme("dark")
        assert panels.violations(".kvlib-panel") == []
        assert panels.violations(".kvlib-scroll") == []


@pytest.mark.timeout(400)
def test_controls_and_pictures_say_what_they_are(panels):
    lab = panels.panel(".kvlib-lab")
    lab.get_by_role("button", name="MQA", exact=True, pressed=False).click()
    lab.get_by_role("button", name="MQA", exact=True, pressed=True).wait_for()
    status = lab.get_by_role("status")
    status.evaluate("node => { window.kvlibStatus = node; }")
    lab.get_by_role("button", name="MHA", exact=True).click()
    status.filter(has_text="MHA (9 KV heads").wait_for()
    assert status.evaluate("node => node === window.kvlibStatus")  # it lives: only its text is new
    assert "MHA (9 KV heads" in lab.locator("img").first.get_attribute("alt")
    slider = panels.panel(".kvlib-filling").get_by_role("slider", name="Step")
    slider.press("ArrowRight")
    stepped = "node => node.getAttribute('aria-valuetext') === '2'"
    panels.page.wait_for_function(stepped, arg=slider.element_handle())
    quiz = panels.panel(".kvlib-teach")
    option = quiz.get_by_role("button", name="B.").first
    option.click()
    quiz.locator("button.kvlib-chosen[aria-pressed=true]").wait_for()
    focused = quiz.get_by_role("button", name="C.").first
    panels.page.keyboard.press("Tab")
    assert focused.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"


@pytest.mark.timeout(400)
def test_keys_typed_in_a_control_do_not_reach_the_cells(panels):
    cells = panels.page.locator(".jp-Cell")
    before = cells.count()
    for css, control in ((".kvlib-memory", "select"), (".kvlib-lab", ".widget-toggle-buttons button"),
                         (".kvlib-filling", "[role=slider]")):  # fmt: skip
        panel = panels.panel(css)
        panel.locator(control).first.focus()
        for key in "mxdd":
            panels.page.keyboard.press(key)
        panels.page.wait_for_timeout(300)
        assert panel.is_visible() and cells.count() == before, (css, control)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("width", [900, 700], ids=["900 pixels", "200 percent of 1400"])
def test_a_narrow_window_keeps_words_legible(panels, width):
    panels.page.set_viewport_size({"width": width, "height": 1000})
    panels.page.wait_for_timeout(500)
    figures = panels.page.locator("img.kvlib-figure")
    for i in range(figures.count()):
        shown, drawn = figures.nth(i).evaluate("image => [image.clientWidth, image.naturalWidth]")
        assert 11 * shown / drawn >= 8  # the smallest words are 8 points, 11 pixels
    memory, time = (panels.page.locator(".kvlib-lab img").nth(i).bounding_box() for i in (0, 1))
    assert time["y"] >= memory["y"] + memory["height"] - 1
    assert panels.violations(".kvlib-pictured") == []


@pytest.mark.timeout(400)
def test_halves_stand_beside_each_other_where_there_is_room(panels):
    memory, time = (panels.page.locator(".kvlib-lab img").nth(i).bounding_box() for i in (0, 1))
    assert memory["y"] == time["y"] and abs(memory["x"] + memory["width"] - time["x"]) < 2


def brightness(lab, figure) -> float:
    figure.scroll_into_view_if_needed()
    return float(np.asarray(Image.open(io.BytesIO(figure.screenshot())).convert("L")).mean())


@pytest.mark.timeout(400)
def test_every_picture_is_dark_in_the_dark_theme(panels):
    figures = panels.page.locator("img.kvlib-figure")
    assert figures.count() == 2 + len(PICTURED)  # the figure, and the live lab in halves
    assert brightness(panels, figures.first) > 200
    panels.theme("dark")
    for i in range(figures.count()):
        assert brightness(panels, figures.nth(i)) < 90


@pytest.mark.timeout(400)
def test_a_saved_lesson_reopened_shows_pictures_and_words(lab):
    write(lab.server, "saved", FIGURE, PANELS["sharing"], PANELS["quiz"])
    lab.open_notebook("saved")
    lab.run_all()
    lab.page.locator(".kvlib-teach").wait_for()
    lab.save()
    assert lab.page.locator(".kvlib-panel").count() == 2  # what is on the screen still works
    lab.server.end_kernels()
    lab.page.goto(lab.server.url("notebooks/saved.ipynb"))
    outputs = lab.page.locator(".jp-OutputArea-output")
    outputs.filter(has_text=AGAIN).wait_for()
    outputs.filter(has_text="Run its cell to use it.").wait_for()
    assert lab.page.get_by_text("model not found").count() == 0
    assert lab.page.locator("img.kvlib-figure").count() == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lesson", NAMES)
def test_stored_figures_have_words_and_follow_the_theme(lab, lesson):
    lab.server.trust(lesson)
    lab.page.goto(lab.server.url(f"notebooks/{lesson}.ipynb"))
    figures = lab.page.locator("img.kvlib-figure")
    figures.first.wait_for()
    assert lab.page.locator(".jp-OutputArea-output img:not(.kvlib-figure)").count() == 0
    assert lab.violations(".kvlib-scroll") == []
    lab.theme("dark")
    for i in range(figures.count()):
        assert brightness(lab, figures.nth(i)) < 90
