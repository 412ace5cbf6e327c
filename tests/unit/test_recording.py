"""A recording's file: what is written is read back, and nothing else is ever taken for one."""

import json
import os
from dataclasses import replace

import pytest

from kvlib.grid import CONTEXTS
from kvlib.memory import MODELS, ModelPreset
from kvlib.recording import RecordedPoint, Recording, RefusedPoint, recorded_folder
from kvlib.recording_file import LARGEST_FILE, MOST_FILES, find, load, parse

TINY = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)


def recording(preset=TINY, **changes) -> Recording:
    """Return a recording made up for these tests; nothing like it is ever put among the assets."""
    made = Recording(
        device="Test device", date="2026-02-03", kvlib="1.0.0", torch="2.13.0", cuda=None,
        preset=preset, dtype="float32", batch=1, bandwidth=3e10, flop_rate=3e11, partial=False,
        points=(), refused=(RefusedPoint("MQA", 1, 131072, "It would need 9.99 GB."),),
    )  # fmt: skip
    points = []
    for kind, heads in (("MHA", preset.num_heads), ("GQA", 2), ("MQA", 1)):
        for context in (128, 512):
            floor = made.floor(heads, context)
            times = (2 * floor, 1.9 * floor, 2.3 * floor)
            points.append(RecordedPoint(kind, heads, context, *times, 5, floor))
    return replace(made, points=tuple(points), **changes)


def test_what_is_saved_is_read_back(tmp_path):
    made = recording()
    path = made.save(tmp_path / "new" / "folder")
    again = load(path)
    assert again.preset == TINY and again.refused == made.refused
    assert replace(again, points=(), bandwidth=0, flop_rate=0) == replace(
        made, points=(), bandwidth=0, flop_rate=0
    )
    for one, other in zip(made.points, again.points, strict=True):
        assert one.seconds == pytest.approx(other.seconds, rel=1e-5)
    assert again.to_json() == path.read_text()  # reading loses nothing that was written
    assert find(tmp_path / "new" / "folder") == ([again], [])


def test_the_name_tells_what_is_inside_and_nothing_is_replaced(tmp_path):
    made = recording(MODELS["Llama 3.1 8B"], device="NVIDIA H100 80GB HBM3", dtype="bfloat16")
    paths = [made.save(tmp_path) for _ in range(3)]
    name = "nvidia-h100-80gb-hbm3-llama-3.1-8b-bfloat16-batch-1-2026-02-03"
    assert [path.name for path in paths] == [f"{name}.json", f"{name}-2.json", f"{name}-3.json"]
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in paths)


def test_it_fits_its_own_shape_dtype_and_batch_only():
    made = recording()
    assert made.fits(TINY, "float32", 1)
    assert not made.fits(TINY, "float32", 2) and not made.fits(TINY, "bfloat16", 1)
    assert not made.fits(replace(TINY, hidden_size=64), "float32", 1)


def test_points_are_found_by_kind_heads_and_context():
    made = recording()
    assert made.point("GQA", 2, 512).context == 512
    assert made.point("GQA", 2, 1024) is None and made.point("GQA", 1, 512) is None
    assert made.refusal("MQA", 1, 131072) == "It would need 9.99 GB."
    assert made.refusal("MQA", 1, 512) is None
    assert [p.context for p in made.curve("MHA", 4)] == [128, 512]
    assert made.kv_heads("GQA") == 2


# What is no recording ---------------------------------------------------------------------------


def changed(change) -> str:
    """Return the file's text with something changed in its data."""
    data = json.loads(recording().to_json())
    change(data)
    return json.dumps(data)


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(data):
        for step in path:
            data = data[step]
        data[last] = value

    return change


def drop(*path):
    def change(data):
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


def swap(data):
    data["points"][0], data["points"][1] = data["points"][1], data["points"][0]


def every_place() -> list[tuple]:
    """Return the path to every field of the file."""
    data = json.loads(recording().to_json())
    places = [(key,) for key in data] + [("model", key) for key in data["model"]]
    places += [("points", 0, key) for key in data["points"][0]]
    return places + [("refused", 0, key) for key in data["refused"][0]]


RIGHT = {
    ("partial", "True"),
    ("tie_embeddings", "True"),
    ("cuda", "None"),
    ("refused", "[]"),
    ("high", "1.5"),
}
WRONG = [[], {}, "", "\ud800", "no\nline", "x" * 500, -1, 0, 1e300, 10**400, 1.5, True, None]


@pytest.mark.parametrize("value", WRONG, ids=[ascii(value)[:20] for value in WRONG])
def test_no_field_takes_a_value_that_is_wrong_for_it(value):
    for place in every_place():
        if (place[-1], repr(value)) in RIGHT:
            continue
        with pytest.raises(ValueError) as caught:
            parse(changed(put(*place, value)))
            pytest.fail(f"{place} took {value!r}")
        said = str(caught.value)
        assert said.endswith(".") and said.isascii() and said.isprintable() and len(said) < 250


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put("points", 0, "seconds", -0.1), "seconds is no number"),
        (put("points", 0, "seconds", 0.9), "outside its quartiles"),
        (put("points", 0, "floor", 0.9), "does not follow from its rates"),
        (put("bandwidth", 6e10), "does not follow from its rates"),
        (put("model", "hidden_size", 64), "does not follow from its rates"),
        (put("model", "num_kv_heads", 3), "multiple of num_kv_heads"),
        (put("points", 0, "kv_heads", 2), "kv_heads is none of 4"),
        (put("points", 2, "kv_heads", 4), "kv_heads is none of 2"),
        (put("points", 0, "context", 100), "context is none of"),
        (put("points", 0, "kind", "MLA"), "kind is none of"),
        (put("points", []), "no measured point"),
        (swap, "not sorted"),
        (lambda data: data["points"].append(data["points"][-1]), "stands twice"),
        (lambda data: data["refused"][0].update(context=512), "stands twice"),
        (lambda data: data["points"].extend(data["points"] * 9), "no list of at most 33"),
        (put("surprise", 1), "unknown 'surprise'"),
        (put("points", 0, "host", "x"), "unknown 'host'"),
        (drop("device"), "lacks 'device'"),
        (drop("points", 0, "low"), "lacks 'low'"),
        (drop("model", "name"), "lacks 'name'"),
        (drop("format"), "not written by kvlib.record"),
        (put("format", "other"), "not written by kvlib.record"),
        (put("version", 0), "of version 0 and this kvlib reads version 1: record it again"),
        (put("version", 2), "of version 2"),
        (put("version", "1"), "of version '1'"),
        (put("date", "2026-02-30"), "no day as YYYY-MM-DD"),
        (put("date", "20260203"), "no day as YYYY-MM-DD"),
        (put("device", "Ger\u00e4t"), "no plain text"),
        (put("device", "<b>\x1b[31m"), "no plain text"),
        (put("device", " "), "no plain text"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(change, why):
    with pytest.raises(ValueError, match=why):
        parse(changed(change))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"), ("{", "not JSON"), ("null", "not written"), ("3", "not written"),
        ("[]", "not written"), ('"text"', "not written"), ("{}", "not written"),
        ('{"format": NaN}', "NaN, which is no number"), ('{"a": 1, "a": 2}', "stands twice"),
        ("[" * 100_000, "nested too deeply"), ('{"a":' * 30_000, "nested too deeply"),
        ("1" * 10_000, "10,000 digits"),
    ],
)  # fmt: skip
def test_what_is_no_json_of_ours_is_refused(tmp_path, text, why):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"file.json is no recording: .*{why}"):
        load(path)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["seconds", "low", "high", "floor"])
def test_a_time_that_is_no_number_is_refused(field, name):
    text = changed(put("points", 0, field, "HERE")).replace('"HERE"', name)
    with pytest.raises(ValueError, match="no number"):
        parse(text)


def test_every_bad_file_of_a_folder_is_named_and_the_good_one_found(tmp_path):
    good = recording().save(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "huge.json").write_text(recording().to_json() + " " * LARGEST_FILE)
    (tmp_path / "nothing.json").touch()
    (tmp_path / "notes.txt").write_text("no recording, and no business of ours")
    bad = {"binary.json": "UTF-8", "folder.json": "plain file"}
    bad |= {"huge.json": "200,000", "nothing.json": "JSON"}
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")  # reading it would never end
        bad["pipe.json"] = "plain file"
        (tmp_path / "loop.json").symlink_to("loop.json")
        (tmp_path / "lost.json").symlink_to("nowhere.json")
        (tmp_path / "there.json").symlink_to(tmp_path, target_is_directory=True)
        (tmp_path / "wei\nrd\udcff.json").write_text("{}")
        bad |= {"loop.json": "", "lost.json": "no such file", "there.json": "plain file"}
        bad["wei\\nrd\\udcff.json"] = "not written by"
    found, problems = find(tmp_path)
    assert [it.file_name for it in found] == [good.name]
    assert len(problems) == len(bad)
    for name, why in bad.items():
        (said,) = [text for text in problems if text.startswith(f"{name} is no recording: ")]
        assert why in said and said.isascii() and said.isprintable() and str(tmp_path) not in said


def test_a_folder_that_is_none_or_is_overfull(tmp_path):
    assert find(tmp_path / "missing") == ([], [])
    file = tmp_path / "file"
    file.touch()
    assert find(file)[0] == [] and "cannot be listed" in find(file)[1][0]
    for number in range(MOST_FILES + 1):
        (tmp_path / f"{number:03}.json").write_text("{}")
    found, problems = find(tmp_path)
    assert found == [] and len(problems) == MOST_FILES + 1 and "first 100" in problems[0]


def test_recordings_belong_beside_the_course():
    assert recorded_folder().parts[-2:] == ("assets", "recorded")
    assert len(CONTEXTS) * 3 == 33
