"""No label of the picture is cut off or lies on another, at the extremes of every control."""

import itertools
from dataclasses import replace

import pytest

from kvlib.lab.curves import (
    BATCHES,
    CONTEXTS,
    Overlay,
    Rates,
    Setting,
    View,
    grouped_choices,
    lab_presets,
)
from kvlib.lab.picture import HEIGHT, WIDTH, LabPicture
from kvlib.lab.style import FLOOR, KINDS
from kvlib.memory import MODELS
from kvlib.recording import RecordedPoint, Recording
from kvlib.timing import Timing

LONG_NAME = "Intel Xeon Platinum 8581C CPU @ 2.10GHz, 224 threads"
SMALL = Setting(MODELS["SmolLM2 135M"], "GQA", 3, 8192, 1, "float32", "cpu")
RATES = [Rates(8e9, 2e10), Rates(4.8e12, 9e14)]


@pytest.fixture(scope="module")
def picture():
    return LabPicture()


def measured(setting, rates, factor=3.0):
    points = {}
    for kind, context in itertools.product(KINDS, CONTEXTS[::2]):
        seconds = setting.floor(rates, kind, context).seconds * factor
        points[setting.point(kind, context)] = Timing.of((seconds, seconds * 1.3), "x")
    return points


def check_labels(picture):
    renderer = picture.figure.canvas.get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in picture.labels()]
    for words, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= WIDTH and box.y1 <= HEIGHT, words
        assert box.x1 <= WIDTH / 2 or box.x0 >= WIDTH / 2, f"{words!r} lies in both halves"
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        apart = (
            one.x1 <= other.x0 + 0.5 or other.x1 <= one.x0 + 0.5
            or one.y1 <= other.y0 + 1.5 or other.y1 <= one.y0 + 1.5
        )  # fmt: skip
        assert apart, f"{a!r} lies on {b!r}"


def extremes():
    """Every shape with few and with many bytes, each kind at an end of the contexts."""
    ends = (("MHA", CONTEXTS[-1]), ("GQA", CONTEXTS[0]), ("MQA", CONTEXTS[-1]))
    for preset in lab_presets().values():
        groups = grouped_choices(preset)
        few, many = (1, "bfloat16", groups[0]), (BATCHES[-1], "float32", groups[-1])
        for batch, dtype, grouped in (few, many):
            for kind, context in ends:
                yield Setting(preset, kind, grouped, context, batch, dtype, "cpu")


@pytest.mark.parametrize("rates", RATES, ids=["slow", "fast"])
def test_no_label_is_cut_or_covered(picture, rates):
    for setting in extremes():
        memory = 8_000_000_000 if setting.batch == 1 else 192_000_000_000
        picture.update(View(setting, LONG_NAME, memory, rates, measured(setting, rates)))
        check_labels(picture)


@pytest.mark.parametrize("seconds", [1e-6, 0.07, 500.0])
def test_a_guess_is_named_beside_the_truth_inside_the_picture(picture, seconds):
    for context in CONTEXTS:
        setting = replace(SMALL, context=context)
        picture.update(
            View(setting, LONG_NAME, 25_000_000_000, RATES[0], measured(setting, RATES[0]),
                 guess=(setting, seconds))
        )  # fmt: skip
        check_labels(picture)
        shown = [text.get_text() for text in picture.labels()]
        assert any(text.startswith("your guess") for text in shown)


def test_a_guess_stays_with_what_it_was_about(picture):
    view = View(SMALL, "x", 10**10, RATES[0], {}, guess=(SMALL, 0.05))
    picture.update(replace(view, setting=replace(SMALL, context=128, kind="MQA")))
    assert list(picture.guess.get_xdata()) == [8192]
    picture.update(replace(view, setting=replace(SMALL, batch=2)))
    assert len(picture.guess.get_xdata()) == 0


def test_lines_hold_the_numbers(picture):
    picture.update(View(SMALL, "x", 25_000_000_000, RATES[0], measured(SMALL, RATES[0])))
    for kind in KINDS:
        cache = list(picture.memory.curves[kind].get_ydata())
        assert cache == [SMALL.cache_bytes(kind, c) for c in CONTEXTS]
        least = SMALL.floor(RATES[0], kind, 128).seconds
        assert picture.time.curves[kind].get_ydata()[0] == least
        assert list(picture.points[kind].get_xdata()) == list(CONTEXTS[::2])
    widths = {kind: line.get_linewidth() for kind, line in picture.memory.curves.items()}
    assert max(widths, key=widths.get) == "GQA"
    assert picture.chosen.get_ydata()[0] == SMALL.cache_bytes()


def test_three_more_curves_have_room(picture):
    points = {128: 0.05, 8192: 0.06}
    overlays = tuple(Overlay(f"your own attention {i}", points, FLOOR) for i in range(3))
    picture.update(View(SMALL, "x", 10**10, RATES[0], {}, overlays=overlays))
    check_labels(picture)
    assert list(picture.overlays[2].get_ydata()) == [0.05, 0.06]
    picture.update(View(SMALL, "x", 10**10, RATES[0], {}))
    assert len(picture.overlays[2].get_ydata()) == 0


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA RTX 6000 Ada Generation Laptop GPU"])
@pytest.mark.parametrize("rates", RATES, ids=["slow", "fast"])
def test_a_recording_is_named_where_no_label_is(picture, device, rates):
    for kind, context in itertools.product(KINDS, (CONTEXTS[0], 8192, CONTEXTS[-1])):
        setting = replace(SMALL, kind=kind, context=context)
        view = View(setting, LONG_NAME, 10**10, RATES[0], measured(setting, RATES[0]))
        for guess in (None, (setting, 0.003)):
            picture.update(replace(view, guess=guess, recorded=recorded_on(device, setting, rates)))
            check_labels(picture)
            shown = [text.get_text() for text in picture.labels()]
            assert any(text.startswith("○ recorded on NVIDIA") for text in shown)
    picture.update(view)
    assert not picture.recorded.label.get_text()


def recorded_on(device, setting, rates):
    """Return a recording made up for its labels alone: every point at twice its floor."""
    made = Recording(
        device, "2026-02-03", "1.0.0", "2.13.0", "13.0", setting.preset, setting.dtype, setting.batch,
        *rates, False, (), (),
    )  # fmt: skip
    points = []
    for kind, context in itertools.product(KINDS, CONTEXTS):
        floor = made.floor(setting.kv_heads(kind), context)
        times = (2 * floor, 2 * floor, 2 * floor, 1, floor)
        points.append(RecordedPoint(kind, setting.kv_heads(kind), context, *times))
    return replace(made, points=tuple(points))


def test_before_the_device_is_measured_no_time_is_drawn(picture):
    picture.update(View(SMALL, LONG_NAME, 10**10))
    check_labels(picture)
    assert all(len(line.get_ydata()) == 0 for line in picture.time.curves.values())


def test_an_update_draws_what_a_fresh_figure_draws(picture):
    view = View(SMALL, "x", 10**10, RATES[0], measured(SMALL, RATES[0]))
    picture.update(replace(view, setting=replace(SMALL, kind="MHA", context=131072)))
    picture.update(view)
    fresh = LabPicture()
    fresh.update(view)
    assert picture.png() == fresh.png()
