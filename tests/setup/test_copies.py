"""The learner's own copies of the lessons: brought up to date, and never an edit lost."""

import json

import pytest


@pytest.fixture
def folders(tmp_path):
    lessons, mine = tmp_path / "notebooks", tmp_path / "my-notebooks"
    lessons.mkdir()
    write(lessons / "01_a.ipynb", "one")
    return lessons, mine


def write(path, source, outputs=(), count=None):
    cell = {"cell_type": "code", "source": [source], "outputs": list(outputs), "metadata": {}}
    path.write_text(json.dumps({"cells": [{**cell, "execution_count": count}], "nbformat": 4}))


def source(path):
    return "".join(json.loads(path.read_text())["cells"][0]["source"])


def test_copies_at_first_and_then_nothing(course, folders):
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "copied"}
    assert course.refresh_copies(*folders) == {}


def test_an_unedited_copy_follows_the_course_even_when_it_was_run(course, folders):
    lessons, mine = folders
    course.refresh_copies(*folders)
    write(mine / "01_a.ipynb", "one", outputs=[{"output_type": "stream"}], count=3)
    assert course.refresh_copies(*folders) == {}
    assert "stream" in (mine / "01_a.ipynb").read_text()  # the same course: the run is kept
    write(lessons / "01_a.ipynb", "two")
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "updated"}
    assert source(mine / "01_a.ipynb") == "two"


def test_new_outputs_alone_are_no_new_version(course, folders):
    lessons, mine = folders
    course.refresh_copies(*folders)
    write(lessons / "01_a.ipynb", "one", count=7)
    assert course.refresh_copies(*folders) == {}


def test_an_edited_copy_is_kept_and_the_new_version_put_beside_it_once(course, folders):
    lessons, mine = folders
    course.refresh_copies(*folders)
    write(mine / "01_a.ipynb", "mine")
    assert course.refresh_copies(*folders) == {}
    write(lessons / "01_a.ipynb", "two")
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "01_a.new.ipynb"}
    assert source(mine / "01_a.ipynb") == "mine"
    assert source(mine / "01_a.new.ipynb") == "two"
    assert course.refresh_copies(*folders) == {}
    write(mine / "01_a.new.ipynb", "mine too")
    write(lessons / "01_a.ipynb", "three")
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "01_a.new2.ipynb"}
    assert source(mine / "01_a.new.ipynb") == "mine too"


def test_a_deleted_copy_comes_back(course, folders):
    lessons, mine = folders
    course.refresh_copies(*folders)
    (mine / "01_a.ipynb").unlink()
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "copied"}


def test_a_lost_record_loses_no_edit(course, folders):
    lessons, mine = folders
    course.refresh_copies(*folders)
    write(mine / "01_a.ipynb", "mine")
    (mine / ".course.json").write_text("{ broken")
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "01_a.new.ipynb"}
    assert source(mine / "01_a.ipynb") == "mine"


def test_an_unreadable_copy_counts_as_edited(course, folders):
    lessons, mine = folders
    course.refresh_copies(*folders)
    (mine / "01_a.ipynb").write_text("{ half a note")
    write(lessons / "01_a.ipynb", "two")
    assert course.refresh_copies(*folders) == {"01_a.ipynb": "01_a.new.ipynb"}
    assert (mine / "01_a.ipynb").read_text() == "{ half a note"


def test_checkpoints_are_not_copied_and_other_files_are(course, folders):
    lessons, mine = folders
    (lessons / ".ipynb_checkpoints").mkdir()
    write(lessons / ".ipynb_checkpoints" / "01_a.ipynb", "old")
    (lessons / "data").mkdir()
    (lessons / "data" / "trace.json").write_text("[]")
    assert set(course.refresh_copies(*folders)) == {"01_a.ipynb", "data/trace.json"}
    assert not (mine / ".ipynb_checkpoints").exists()
