"""The build of the lessons: reproducible, clean, and refusing what must not be stored."""

import base64
import io

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from kvlib.teach import build

MARKED = {"tags": ["nbval-ignore-output", "timing"]}
CLOCK = "# timing: the clock\nimport time\nprint(time.time_ns())"


def write(folder, *cells):
    path = folder / "00_try.ipynb"
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


def run_cell(source="1 + 1", count=1, outputs=(), **metadata):
    cell = new_code_cell(source, execution_count=count, outputs=list(outputs), metadata=metadata)
    cell.id = f"cell-{count}"
    return cell


@pytest.mark.slow
def test_a_second_build_changes_no_byte_and_fresh_measures_again(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "sources_hash", lambda notebook: "the same")
    title = new_markdown_cell("# A title")
    path = write(
        tmp_path, title, new_code_cell("print('a')"), new_code_cell(CLOCK, metadata=MARKED)
    )
    assert build.build(path) == []
    first = path.read_bytes()
    assert build.build(path) == []
    assert path.read_bytes() == first
    assert build.build(path, fresh=True) == []
    assert path.read_bytes() != first
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.id for cell in cells] == ["a-title", "a-title-1", "a-title-2"]
    assert [cell.get("execution_count") for cell in cells] == [None, 1, 2]


@pytest.mark.slow
def test_a_failing_lesson_is_reported_and_left_as_it_was(tmp_path):
    path = write(tmp_path, new_code_cell("1 / 0"))
    before = path.read_bytes()
    [problem] = build.build(path)
    assert "ZeroDivisionError" in problem
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (run_cell(count=2), "execution count"),
        (run_cell(outputs=[new_output("stream", name="stderr", text="Careful")]), "stderr"),
        (run_cell(outputs=[new_output("error", ename="KeyError", evalue="'a'")]), "KeyError"),
        (run_cell(outputs=[new_output("stream", text="/home/ann/course")]), "one machine"),
        (run_cell(outputs=[new_output("stream", text="at 0x7f12345678ab")]), "one machine"),
        (run_cell(CLOCK), "all three"),
        (run_cell("print(1)", **MARKED), "all three"),
        (run_cell("# device: a name\nprint(1)", **MARKED), "all three"),
        (run_cell(CLOCK, tags=["timing"]), "all three"),
        (run_cell("print(1)", tags=["nbval-ignore-output"]), "all three"),
    ],
)
def test_names_what_may_not_be_stored(cell, words):
    [problem] = build.problems(new_notebook(cells=[cell]))
    assert words in problem


def test_stores_what_is_in_order():
    good = [run_cell(outputs=[new_output("stream", text="2")]), run_cell(CLOCK, 2, **MARKED)]
    assert build.problems(new_notebook(cells=good)) == []


def test_keeps_measured_outputs_only_while_the_sources_are_the_same(monkeypatch):
    old = new_notebook(
        cells=[run_cell(CLOCK, outputs=[new_output("stream", text="old")], **MARKED)]
    )
    old.metadata["kvlib"] = {"sources": "one"}
    for stamp, expected in [("one", "old"), ("two", "new")]:
        outputs = [new_output("stream", text="new")]
        new = new_notebook(cells=[run_cell(CLOCK, outputs=outputs, **MARKED)])
        monkeypatch.setattr(build, "sources_hash", lambda notebook, stamp=stamp: stamp)
        build.tidy(new, old)
        assert new.cells[0].outputs[0].text == expected


def test_a_picture_stays_and_its_widget_goes():
    picture = io.BytesIO()
    Image.linear_gradient("L").save(picture, "PNG")
    encoded = base64.b64encode(picture.getvalue()).decode()
    data = {"image/png": encoded, "text/plain": "A panel", build.WIDGET: {"model_id": "1"}}
    notebook = new_notebook(cells=[run_cell(outputs=[new_output("display_data", data)])])
    build.tidy(notebook)
    [output] = notebook.cells[0].outputs
    assert set(output["data"]) == {"image/png", "text/plain"}
    small = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
    assert small.size == (256, 256) and len(small.getcolors()) <= build.COLOURS
    assert small.info == {}


def test_a_picture_in_html_is_shrunk_and_given_away_and_hides_no_path():
    picture = io.BytesIO()
    Image.linear_gradient("L").save(picture, "PNG")
    encoded = base64.b64encode(picture.getvalue()).decode()
    data = {
        "text/html": f'<img alt="A ramp" src="data:image/png;base64,{encoded}">', "text/plain": "A ramp"
    }  # fmt: skip
    notebook = new_notebook(cells=[run_cell(outputs=[new_output("display_data", data)])])
    notebook.cells[0].metadata["kvlib"] = {"asset": "ramp.png"}
    build.tidy(notebook)
    given = build.pictures(notebook)["ramp.png"]
    assert len(Image.open(io.BytesIO(given)).getcolors()) <= build.COLOURS
    [output] = notebook.cells[0].outputs
    assert base64.b64encode(given).decode() in output["data"]["text/html"]
    output["data"]["text/html"] = '<img src="data:image/png;base64,AA/tmp/AA">'  # chance, no path
    notebook.cells[0].execution_count = 1
    assert build.problems(notebook) == []
    output["data"]["text/html"] += "/tmp/secret/"
    assert "belongs to one machine" in build.problems(notebook)[0]


def test_streams_that_arrive_in_pieces_are_joined():
    pieces = [new_output("stream", text=text) for text in ("a", "b")]
    notebook = new_notebook(cells=[run_cell(outputs=pieces)])
    build.tidy(notebook)
    assert [output.text for output in notebook.cells[0].outputs] == ["ab"]


def test_readable_ids_stay_and_random_ones_are_replaced():
    cells = [new_markdown_cell("## See it"), new_code_cell("1"), new_code_cell("2")]
    cells[1].id = "my-own"
    notebook = new_notebook(cells=cells)
    build.tidy(notebook)
    assert [cell.id for cell in notebook.cells] == ["see-it", "my-own", "see-it-1"]


def test_measurements_depend_on_the_code_that_measures_and_draws(tmp_path, monkeypatch):
    draw = ("curves.py", "label.py", "layout.py", "measuring.py", "picture.py", "smaller_run.py", "style.py")
    assert {path.name for path in (build.ROOT / "kvlib/lab").iterdir()} >= build.DRAWS
    monkeypatch.setattr(build, "ROOT", tmp_path)
    cells = [nbformat.v4.new_markdown_cell("Read."), nbformat.v4.new_code_cell("1")]
    notebook = nbformat.v4.new_notebook(cells=cells)

    def stamp_with(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return build.sources_hash(notebook)

    stamps = [stamp_with("requirements.txt", "torch")]
    sources = (
        *(f"kvlib/lab/{name}" for name in (*draw, "live_picture.py", "live_step.py")),
        "kvlib/timing.py", "kvlib/caches/a.py", "kvlib/native/step.c", "requirements.txt",
    )  # fmt: skip
    stamps += [stamp_with(name, f"{name}\n") for name in sources]
    cells[1].source = "2"
    stamps.append(build.sources_hash(notebook))
    assert len(set(stamps)) == len(sources) + 2

    cells[0].source = "Read on."
    for words in ("kvlib/lab/words.py", "kvlib/teach/guess.py", "kvlib/lab/look.css", "kvlib/native/step.so"):
        assert stamp_with(words, "x") == stamps[-1], words
    (tmp_path / "kvlib/timing.py").write_bytes(b"kvlib/timing.py\r\n")  # a checkout on Windows
    assert build.sources_hash(notebook) == stamps[-1]
    (tmp_path / "kvlib/timing.py").rename(tmp_path / "kvlib/timings.py")
    assert build.sources_hash(notebook) != stamps[-1]
