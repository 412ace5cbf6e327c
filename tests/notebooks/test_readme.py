"""The README is true: its links, its picture, its code and its commands."""

import re
import subprocess
import sys

import pytest

from kvlib.teach.build import ASSETS, ROOT, pictures
from tests.notebooks.lessons import NAMES, stored

README = (ROOT / "README.md").read_text("utf-8")


def test_links_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links and [link for link in links if not (ROOT / link).is_file()] == []


def test_every_lesson_is_on_the_map():
    assert [name for name in NAMES if f"notebooks/{name}.ipynb" not in README] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_map_gives_the_minutes_that_the_lesson_gives(name):
    (said,) = re.findall(r"\*\*Minutes\*\* (.*?)\.", stored(name).cells[0].source)
    parts = re.sub(r"about \d+:", "", said)  # the sum of what follows
    (mapped,) = re.findall(rf"{name}\.ipynb.*\| (\d+) \|", README)
    assert sum(map(int, re.findall(r"\d+", parts))) == int(mapped), said


def test_every_file_of_kvlib_is_in_the_table():
    files = [p.name for p in (ROOT / "kvlib").glob("*.py") if p.name != "__init__.py"]
    assert [name for name in files if not re.search(rf"[`/]{name}`", README)] == []


def test_lessons_link_to_lessons_that_exist():
    for name in NAMES:
        text = "\n".join(c.source for c in stored(name).cells if c.cell_type == "markdown")
        assert [link for link in re.findall(r"\]\((\w+\.ipynb)", text) if link[:-6] not in NAMES] == []


def test_pictures_are_the_ones_that_the_lessons_store():
    shown = {n: png for name in NAMES for n, png in pictures(stored(name)).items()}
    assert "live-lab.png" in shown
    for name, png in shown.items():
        assert (ASSETS / name).read_bytes() == png, f"{name}: run `python course.py build`"


def test_every_file_named_in_the_text_exists():
    named = re.findall(r"`(kvlib/[\w/]*(?:\.py)?)`", README)
    assert named and [path for path in named if not (ROOT / path).exists()] == []


def test_the_code_runs_and_says_what_the_comment_says(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    *lines, last = code.strip().splitlines()
    call, promised = last.split("  # ")
    names: dict = {}
    exec("\n".join(lines), names)  # the real model answers
    assert "key-value" in capsys.readouterr().out
    assert eval(call, names) == int(promised)


@pytest.mark.parametrize("command", ["lab", "test", "build", "pack"])
def test_course_py_explains_each_command_it_names(command):
    assert f"course.py {command}" in README
    said = subprocess.run(
        [sys.executable, ROOT / "course.py", "--help"], capture_output=True, text=True, timeout=60
    )
    assert f"course.py {command}" in said.stdout
