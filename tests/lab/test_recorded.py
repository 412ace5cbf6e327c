"""Recordings beside live points: found, offered where they fit, told apart, and never a crash.

Every recording here is made by the recorder on this CPU, in the test, of a tiny shape.
"""

import json
from dataclasses import replace

import pytest

from kvlib.lab import LiveLab, recorded
from kvlib.lab.recorded import options, recordings_from
from kvlib.lab.style import KINDS, MARKERS, TEXT_COLORS
from kvlib.memory import ModelPreset
from kvlib.record import INTERRUPTED, record
from kvlib.recording import RefusedPoint

TINY = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)


@pytest.fixture(scope="module")
def recording():
    return record(TINY, device="cpu", dtype="float32", contexts=(128, 512, 2048), budget_s=60)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in the place of assets/recorded."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    monkeypatch.setattr(recorded, "recorded_folder", lambda: folder)
    return folder


def tiny_lab(**options):
    return LiveLab(TINY, "cpu", "float32", **{"context": 512, **options})


def status(lab):
    return lab.status.value


def offered(lab):
    """Return what the control offers, or None where it is not on the screen."""
    hidden = lab.controls._recorded_row.layout.display == "none"
    return None if hidden else [label for label, _ in lab.controls.recorded.options]


def drawn(lab, kind):
    line = lab.picture.recorded.curves[kind]
    return dict(zip(line.get_xdata(), line.get_ydata(), strict=True))


def empty(lab):
    lines = lab.picture.recorded.lines
    return all(len(line.get_xdata()) == 0 for line in lines) and not lab.picture.recorded.label.get_text()


def test_where_nothing_is_recorded_nothing_is_different(folder):
    lab, bare = tiny_lab(), tiny_lab(recorded=[])
    assert offered(lab) is None and empty(lab) and "ecord" not in status(lab)
    assert lab.picture.png() == bare.picture.png()
    (folder / "notes.txt").write_text("not ours")
    assert "ecord" not in status(tiny_lab())


def test_what_is_found_is_offered_and_drawn_when_it_is_chosen(folder, recording):
    recording.save(folder)
    lab = tiny_lab()
    name = f"{recording.device}, {recording.date}"
    assert offered(lab) == ["none", name] and empty(lab) and "Recorded" not in status(lab)
    lab.controls.recorded.value = 0
    saved = lab.recordings[0]
    for kind, heads in (("MHA", 4), ("GQA", 2), ("MQA", 1)):
        assert drawn(lab, kind) == {p.context: p.seconds for p in saved.curve(kind, heads)}
        assert len(drawn(lab, kind)) == 3
    assert f"Recorded, not measured here: on {name}, it took" in status(lab)
    lab.controls.recorded.value = None
    assert empty(lab) and "Recorded" not in status(lab)


def test_it_looks_unlike_what_is_live(recording):
    lab = tiny_lab(recorded=recording)
    lab.sweep(contexts=(128, 512))
    for kind in KINDS:
        live, kept = lab.picture.points[kind], lab.picture.recorded.curves[kind]
        assert live.get_fillstyle() == "full" and kept.get_fillstyle() == "none"
        assert live.get_linestyle() == "-" and kept.get_linestyle() != "-"
        assert kept.get_marker() == MARKERS[kind]
        assert list(live.get_ydata()) != list(kept.get_ydata())[:2]
    label = lab.picture.recorded.label
    assert label.get_text().startswith("○ recorded on ") and label.get_text().endswith(recording.date)
    assert label.get_color() == TEXT_COLORS["GQA"]
    floors = [recording.floor(2, c) for c in lab.picture.recorded.floor.get_xdata()]
    assert list(lab.picture.recorded.floor.get_ydata()) == floors
    low, high = lab.picture.time.axes.get_ylim()
    assert all(low < s < high for kind in KINDS for s in drawn(lab, kind).values())


def test_the_sentence_says_which_is_live_and_how_they_compare(recording):
    lab = tiny_lab(recorded=recording)
    assert "Here it took" not in status(lab)
    lab.sweep(contexts=(512,))
    assert "One decode step took" in status(lab) and "Recorded, not measured here" in status(lab)
    assert "Here it took" in status(lab)
    lab.controls.context.value = 8192
    assert "has no time for this point." in status(lab)
    lab.controls.kind.value = "MHA"
    lab.controls.context.value = 128
    assert "Recorded, not measured here" in status(lab)


def test_it_is_offered_for_its_own_shape_dtype_and_batch_only(recording):
    lab = tiny_lab(recorded=recording)
    assert offered(lab) and not empty(lab)
    for control, other, own in (("batch", 2, 1), ("dtype", "bfloat16", "float32"),
                                ("model", "SmolLM2 135M", "Tiny")):  # fmt: skip
        getattr(lab.controls, control).value = other
        assert offered(lab) is None and empty(lab) and "Recorded" not in status(lab), control
        getattr(lab.controls, control).value = own
        assert len(offered(lab)) == 2
    same_name = replace(TINY, hidden_size=64)
    assert offered(LiveLab(same_name, "cpu", "float32", recorded=recording)) is None


def test_a_refused_point_and_a_partial_recording_are_told(recording):
    kept = [p for p in recording.points if (p.kind, p.context) != ("GQA", 512)]
    partial = replace(
        recording, points=tuple(kept), refused=(RefusedPoint("GQA", 2, 512, INTERRUPTED),), partial=True
    )
    lab = tiny_lab(recorded=partial)
    assert offered(lab)[1].endswith("(partial)")
    assert f"has no time for this point: {INTERRUPTED}" in status(lab)
    assert "stopped before it was complete" in status(lab)


def test_another_number_of_kv_heads_is_another_curve():
    wide = ModelPreset("Wide", 2, 8, 4, 8, 32, 48, 96, True)
    made = record(wide, device="cpu", dtype="float32", contexts=(128,), budget_s=60)
    lab = LiveLab(wide, "cpu", "float32", context=128, recorded=made)
    assert drawn(lab, "GQA") and "it took" in status(lab)
    lab.controls.grouped.value = 2
    assert drawn(lab, "GQA") == {} and "it has GQA with 4 KV heads" in status(lab)
    assert drawn(lab, "MQA") and lab.picture.recorded.label.get_text()


def test_two_of_one_name_can_be_told_apart(folder, recording):
    recording.save(folder)
    recording.save(folder)
    names = [name for name, _ in options(*[recordings_from(None)[0], tiny_lab().setting])]
    assert names == [f"{recording.device}, {recording.date}{more}" for more in ("", " (2)")]


@pytest.mark.parametrize("as_what", ["file", "text", "folder", "object", "list"])
def test_one_that_is_given_is_shown_at_once(tmp_path, recording, as_what):
    path = recording.save(tmp_path / "own")
    given = {
        "file": path, "text": str(path), "folder": path.parent, "object": recording, "list": [path, None],
    }[as_what]  # fmt: skip
    lab = tiny_lab(recorded=given)
    assert lab.controls.recorded.value == 0 and len(drawn(lab, "GQA")) == 3


@pytest.mark.parametrize("wrong", [3, 1.5, True, object(), {"a": 1}, [3], [[object]], b"x"])
def test_what_is_no_path_and_no_recording_is_refused(wrong):
    with pytest.raises(ValueError, match="recorded must be"):
        tiny_lab(recorded=wrong)


def broken(recording):
    """Files that are no recording, with a word of what is said of each."""
    good = recording.to_json()
    data = json.loads(good)
    first = data["points"][0]
    rows = data["points"]
    return {
        "empty": ("", "not JSON"),
        "not-json": ("<html>", "not JSON"),
        "cut": (good[:400], "not JSON"),
        "foreign": ('{"cells": []}', "not written by"),
        "a-list": ("[1, 2]", "not written by"),
        "old": (good.replace('"version": 1', '"version": 0'), "record it again"),
        "nan": (good.replace(repr(first["seconds"]), "NaN", 1), "NaN"),
        "negative": (json.dumps({**data, "points": [{**first, "low": -1.0}]}), "its low is no number"),
        "text": (json.dumps({**data, "points": [{**first, "seconds": "fast"}]}), "seconds is no number"),
        "unsorted": (json.dumps({**data, "points": rows[::-1]}), "not sorted"),
        "missing": (json.dumps({k: v for k, v in data.items() if k != "date"}), "lacks 'date'"),
        "markup": (json.dumps({**data, "points": [{**first, "kind": "<b>"}]}), "kind is none of"),
        "huge": (good + " " * 10**6, "larger than"),
    }


@pytest.mark.parametrize("name", ["empty", "not-json", "cut", "foreign", "a-list", "old", "nan", "negative",
                                  "text", "unsorted", "missing", "markup", "huge"])  # fmt: skip
def test_a_broken_file_is_said_once_and_the_lab_works(folder, recording, paper, name):
    text, why = broken(recording)[name]
    (folder / f"{name}.json").write_text(text)
    lab = tiny_lab()
    said = status(lab).replace("&#x27;", "'")
    assert f"A recorded file was not used: {name}.json is no recording: " in said and why in said
    assert "at least" in said and "Error" not in said and offered(lab) is None
    assert "<b>" not in said
    lab.controls.kind.value = "MQA"
    assert "not used" not in status(lab) and "One decode step took" in status(lab)


def test_good_ones_beside_broken_ones_are_offered(folder, recording):
    recording.save(folder)
    for name in ("b", "c", "d"):
        (folder / f"{name}.json").write_text("{")
    (folder / "a.json").mkdir()
    lab = tiny_lab()
    assert len(offered(lab)) == 2
    assert "a.json is no recording: it is no plain file. 3 more were not used either." in status(lab)


@pytest.mark.parametrize("path", ["nowhere.json", "no/such/folder", "a\0b", "x" * 5000])
def test_a_path_that_leads_nowhere_is_said(tmp_path, path):
    lab = tiny_lab(recorded=f"{tmp_path}/{path}")
    assert "is no recording" in status(lab) and "at least" in status(lab)
    assert str(tmp_path) not in status(lab)


def test_what_a_notebook_keeps_names_no_recording(recording):
    lab = tiny_lab(recorded=recording)
    assert lab.summary() == tiny_lab().summary()
