"""The progress file: two writers keep both entries, and no damage on disk raises."""

import json
import os
import threading

import pytest

from kvlib.teach import progress
from kvlib.teach.progress_panel import report
from kvlib.teach.store import ProgressFile, progress_file


def test_an_entry_comes_back_in_another_kernel(home):
    ProgressFile(home / "progress.json").put("guesses", "a", value=3.0)
    assert ProgressFile(home / "progress.json").get("guesses", "a") == {"value": 3.0}
    assert json.loads((home / "progress.json").read_text())["version"] == 1


def test_two_notebooks_keep_each_others_entries(home):
    one, two = (ProgressFile(home / "progress.json") for _ in range(2))
    one.put("guesses", "a", value=1)
    two.put("guesses", "b", value=2)
    one.put("guesses", "a", revealed=True)
    assert two.entries("guesses") == {"a": {"value": 1, "revealed": True}, "b": {"value": 2}}


def test_two_writers_at_the_same_moment_lose_nothing(home, monkeypatch):
    monkeypatch.setattr("kvlib.teach.store.LOCK_PATIENCE_S", 20)

    def write_many(name):
        file = ProgressFile(home / "progress.json")
        for number in range(30):
            file.put("guesses", f"{name}{number}", value=number)

    writers = [threading.Thread(target=write_many, args=[name]) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(progress_file().entries("guesses")) == 60
    assert sorted(path.name for path in home.iterdir()) == ["progress.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": "x"}', '{"version": 1, "guesses": {"a": 3}}', "\0"]
)
def test_a_damaged_file_is_set_aside_and_said(home, text):
    home.mkdir()
    (home / "progress.json").write_text(text)
    file = progress_file()
    assert file.entries("guesses") == {}
    assert "could not be read" in file.trouble
    file.put("guesses", "a", value=1)
    assert "kept as progress-unreadable.json" in file.trouble
    assert (home / "progress-unreadable.json").read_text() == text
    assert ProgressFile(file.path).get("guesses", "a") == {"value": 1}


def test_every_damaged_file_is_kept(home):
    home.mkdir()
    for text in ("one", "two", "three"):
        (home / "progress.json").write_text(text)
        progress_file().put("guesses", "a", value=1)
    kept = [(home / f"progress-unreadable{n}.json").read_text() for n in ("", "-2", "-3")]
    assert kept == ["one", "two", "three"]
    assert "kept as progress-unreadable-3.json" in progress_file().trouble


def test_a_trouble_that_has_passed_is_no_longer_told(home):
    home.write_text("in the way")
    file = progress_file()
    file.put("guesses", "a", value=1)
    assert "kept in memory" in file.trouble
    home.unlink()
    file.put("guesses", "b", value=2)
    assert file.trouble == ""


def test_a_file_that_is_not_text_is_survived(home):
    home.mkdir()
    (home / "progress.json").write_bytes(b"\xff\xfe\xff")
    assert progress_file().entries("quizzes") == {}


def test_a_newer_file_is_left_alone(home):
    home.mkdir()
    newer = '{"version": 2, "stories": {}}'
    (home / "progress.json").write_text(newer)
    file = progress_file()
    file.put("guesses", "a", value=1)
    assert "newer version" in file.trouble
    assert file.get("guesses", "a") == {"value": 1}
    assert (home / "progress.json").read_text() == newer


@pytest.mark.parametrize("place", ["not a folder", "a folder in its place"])
def test_where_nothing_can_be_written_progress_stays_in_memory(home, monkeypatch, place):
    if place == "not a folder":
        home.write_text("in the way")
    else:
        (home / "progress.json").mkdir(parents=True)
    file = progress_file()
    file.put("exercises", "a", status="correct")
    file.put("exercises", "b", status="not yet")
    assert file.entries("exercises") == {"a": {"status": "correct"}, "b": {"status": "not yet"}}
    assert "kept in memory" in file.trouble
    assert "kept in memory" in progress().status.value


def test_a_read_only_folder_keeps_memory_and_catches_up(home, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    file = progress_file()
    file.put("guesses", "old", value=0)
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkstemp", refuse)
        file.put("guesses", "a", value=1)
        assert "Permission denied" in file.trouble
    assert set(file.entries("guesses")) == {"old", "a"}
    file.put("guesses", "b", value=2)
    assert set(ProgressFile(file.path).entries("guesses")) == {"old", "a", "b"}


def test_a_write_that_fails_leaves_the_old_file_whole(home, monkeypatch):
    file = progress_file()
    file.put("guesses", "a", value=1)
    before = file.path.read_text()

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    file.put("guesses", "b", value=2)
    assert "No space left" in file.trouble
    assert file.path.read_text() == before
    assert [path.name for path in home.iterdir()] == ["progress.json"]


def test_a_lock_left_behind_does_not_stop_a_write(home):
    file = progress_file()
    home.mkdir()
    lock = home / "progress.json.lock"
    lock.touch()
    file.put("guesses", "a", value=1)
    assert file.get("guesses", "a") == {"value": 1}
    os.utime(lock, (0, 0))
    file.put("guesses", "b", value=2)
    assert not lock.exists()


def test_forget_starts_anew(home, capsys):
    progress_file().put("guesses", "a", value=1)
    progress.forget()
    assert "Progress forgotten" in capsys.readouterr().out
    assert progress_file().entries("guesses") == {}
    assert not (home / "progress.json").exists()
    progress.forget()


def test_the_panel_counts(home):
    empty = report()
    assert empty[0].startswith("Lesson 00: 0 of 2 exercises solved, 0 of 4 questions right")
    panel = progress()
    assert panel.plain().splitlines()[0] == "Your progress"
    file = progress_file()
    file.put("exercises", "00-decode-shapes", status="correct")
    file.put("exercises", "00-longest-context", status="not yet")
    file.put("quizzes", "00-why-not-q", picked=1, right=True)
    file.put("guesses", "a", value=1)
    panel.refresh()
    assert "Lesson 00: 1 of 2 exercises solved, 1 of 4 questions right" in panel.plain()
    assert "Guesses made: 1" in panel.lines.value
    assert progress().plain() == panel.plain()
