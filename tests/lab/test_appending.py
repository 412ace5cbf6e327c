"""The appending panel without a browser: every end of every control, its sentence and its picture."""

import pytest

from kvlib.lab.appending import ROOMS, AppendingPanel
from kvlib.lab.appending_picture import FREE, FRESH, HEIGHT, WIDTH
from kvlib.lab.appending_steps import Appending
from kvlib.teach.exercises import define, solution_source
from tests.lab.stepping import saved_form, shows_an_error_and_goes_on

cat_cost = define("cat_cost", solution_source("07-cat-cost"))
ROW = 1536  # K and V of 3 heads of 64 numbers of 4 bytes


@pytest.fixture
def panel():
    return AppendingPanel(room=12, step=5)


def looks(strip):
    from matplotlib.colors import to_hex

    return [to_hex(slot.get_facecolor()).upper() for slot in strip.slots if slot.get_visible()]


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_counted_is_what_the_formula_says(room):
    run = Appending(room)
    assert run.row == ROW and run.last_step == room + 1 and len(run.frames) == room + 2
    for t, frame in enumerate(run.frames[1:], 1):
        written, peak = cat_cost(1, t - 1, ROW)
        assert (frame.cat.written, frame.cat.peak, frame.cat.held) == (written, peak, t * ROW)
        assert frame.cat.now == t * ROW and frame.cat.moved == (t > 1)
        kept = min(t, room)
        assert (frame.buffer.tokens, frame.buffer.written) == (kept, kept * ROW)
        assert frame.buffer.held == frame.buffer.peak == room * ROW and not frame.buffer.moved
        assert bool(frame.refused) == (t > room)


def test_opens_where_it_was_told_and_says_all_numbers(panel):
    assert {"kvlib-panel", "kvlib-appending"} <= set(panel._dom_classes)
    assert panel.slider.max == 13
    for part in ("Token 5. torch.cat writes 5 rows, 4 copied and 1 new: 7.68 kB, 23 kB so far",
                 "Alive at its peak: 13.8 kB, at another address", "takes 1 row: 1.54 kB, 7.68 kB so far",
                 "holds 18.4 kB, 5 of 12 slots used, at the same address"):  # fmt: skip
        assert part in panel.status.value
    assert "By now" not in panel.status.value


def test_the_strips_show_old_new_held_and_reserved(panel):
    assert len(looks(panel.picture.old)) == 4 and len(looks(panel.picture.grown)) == 5
    assert looks(panel.picture.grown)[-1] == FRESH and FRESH not in looks(panel.picture.grown)[:-1]
    buffer = looks(panel.picture.buffer)
    assert len(buffer) == 12 and buffer[4] == FRESH and buffer[5:] == [FREE] * 7
    assert not panel.picture.refused.get_visible()


def test_the_lines_end_at_the_step(panel):
    cat, buffer = (line.get_ydata() for line in panel.picture.written["lines"])
    assert list(cat) == [ROW * t * (t + 1) // 2 for t in range(6)]
    assert list(buffer) == [ROW * t for t in range(6)]
    peak, reserved = (line.get_ydata()[-1] for line in panel.picture.alive["lines"])
    assert (peak, reserved) == (9 * ROW, 12 * ROW)


def test_the_titles_are_as_exact_as_the_numbers_beside_them():
    run = Appending(24)
    assert run.peak_title(run.frames[13]) == "Alive at once: torch.cat 1.04 times the buffer"
    assert run.peak_title(run.frames[12]) == "Alive at once: torch.cat 0.96 times the buffer"
    assert run.title(run.frames[24]) == "Written so far: 12.5 times as much by torch.cat"


def test_the_buttons_walk_to_both_ends_and_stay(panel):
    for _ in range(12):
        panel.next.click()
    assert panel.slider.value == 13 and "The panel ends here; torch.cat could go on." in panel.status.value
    assert "The buffer refuses" in panel.status.value and "do not fit" in panel.status.value
    assert panel.picture.refused.get_visible() and FRESH not in looks(panel.picture.buffer)
    for _ in range(20):
        panel.previous.click()
    assert panel.slider.value == 0 and "There is nothing before it." in panel.status.value
    assert looks(panel.picture.grown) == [] and looks(panel.picture.buffer) == [FREE] * 12


def test_it_says_when_the_peak_passes_the_reservation(panel):
    said = []
    for step in range(1, 13):
        panel.slider.value = step
        said.append("By now" in panel.status.value)
    assert said == [2 * t - 1 > 12 for t in range(1, 13)]


def test_another_room_keeps_the_token_as_far_as_there_is_one(panel):
    panel.room.value = 48
    panel.slider.value = 49
    assert "49 tokens do not fit" in panel.status.value
    panel.room.value = 24
    assert panel.slider.value == panel.slider.max == 25 and len(looks(panel.picture.buffer)) == 24
    panel.room.value = 12
    assert panel.slider.value == 13 and panel.run.room == 12


@pytest.mark.parametrize("room", ROOMS)
def test_no_label_leaves_the_picture_or_covers_another(room):
    panel = AppendingPanel(room=room, step=0)
    for step in range(panel.slider.max + 1):
        panel.slider.value = step
        renderer = panel.picture.figure.canvas.get_renderer()
        boxes = []
        for label in panel.picture.labels():
            width = renderer.get_text_width_height_descent(
                label.get_text(), label.get_fontproperties(), ismath=False
            )[0]
            x, y = label.get_position()
            assert x >= 0 and x + width <= WIDTH and 0 <= y <= HEIGHT - 10, label.get_text()
            boxes.append((x, x + width, y, label.get_text()))
        for i, (left, right, y, text) in enumerate(boxes):
            for other_left, other_right, other_y, other in boxes[i + 1 :]:
                assert left >= other_right or other_left >= right or abs(y - other_y) >= 12, (text, other)


def test_every_step_draws_and_says_something_of_its_own(panel):
    pictures, sentences = set(), set()
    for step in range(14):
        panel.slider.value = step
        pictures.add(bytes(panel.image.value))
        sentences.add(panel.status.value)
    assert len(pictures) == len(sentences) == 14


def test_the_saved_form_is_the_same_each_time(panel):
    data = saved_form(panel)
    assert "a buffer of 12 slots beside torch.cat. Token 5." in data["text/plain"]


def test_an_error_is_shown_and_the_panel_goes_on(panel, monkeypatch):
    shows_an_error_and_goes_on(panel, monkeypatch, "Token 7.")


@pytest.mark.parametrize(("given", "words"), [({"room": 13}, "room 13 is not one of: 12, 24, 48"),
                                              ({"step": 26}, "step 26 is not one of 0 to 25"),
                                              ({"step": -1}, "step"), ({"step": True}, "step")])  # fmt: skip
def test_refuses_what_it_does_not_have(given, words):
    with pytest.raises(ValueError, match=words):
        AppendingPanel(**given)
