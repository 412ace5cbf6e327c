"""The softmax panel without a browser: every end of every control, its sentence and its picture."""

import numpy as np
import pytest
import torch

from kvlib.attention import reference_attention
from kvlib.lab.online_softmax import OnlineSoftmaxPanel
from kvlib.lab.online_softmax_picture import FUTURE, HEIGHT, KEPT, NEW, WIDTH
from kvlib.lab.online_softmax_steps import ORDERS, PARTS, TILES, OnlineSoftmax
from kvlib.lab.online_softmax_words import number, sentence
from kvlib.teach.course_model import ByteTokenizer, random_model
from kvlib.tiled import attend_part
from tests.lab.stepping import saved_form, shows_an_error_and_goes_on

WORDS = ["The", "cat", "sat", "on", "the", "mat", "and", "slept", "there"]
SCORES = np.array([0.5, 1.0, -1.0, 2.0, 3.5, 0.0, -2.0, 1.5, 0.2])
VALUES = np.random.default_rng(0).normal(size=(9, 5))


@pytest.fixture
def panel():
    return OnlineSoftmaxPanel(WORDS, SCORES, VALUES)


def colours(panel):
    return [bar.get_facecolor()[:3] for bar in panel.picture.bars]


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def heights(bars):
    return np.array([bar.get_height() for bar in bars])


def test_opens_on_the_first_tile(panel):
    assert {"kvlib-panel", "kvlib-softmax"} <= set(panel._dom_classes)
    assert panel.slider.max == 3 and panel.tile.value == 4
    assert "Step 1 of 3, keys 0 to 3: the first scores; the largest, 2" in panel.status.value
    assert np.allclose(colours(panel), [rgb(NEW)] * 4 + [rgb(FUTURE)] * 5)


def test_a_new_maximum_shrinks_what_is_kept_and_says_by_how_much(panel):
    before = heights(panel.picture.rest)
    panel.next.click()
    assert "a score of 3.5 is above the maximum so far, 2." in panel.status.value
    assert f"exp(2 − 3.5) = {number(np.exp(-1.5))}" in panel.status.value
    after = heights(panel.picture.rest)
    assert np.allclose(after[:4], before[:4] * np.exp(-1.5)) and np.isclose(after[4], 1)
    assert np.allclose(after, np.where(np.arange(9) < 8, np.exp(SCORES - 3.5), 0))
    assert np.allclose(colours(panel), [rgb(KEPT)] * 4 + [rgb(NEW)] * 4 + [rgb(FUTURE)])
    lines = [segment.tolist() for segment in panel.picture.highs.get_segments()]
    assert lines == [[[-0.5, 3.5], [7.5, 3.5]]] and len(panel.picture.old.get_segments()) == 1
    panel.next.click()
    assert "no score is above the maximum, 3.5, so nothing is rescaled" in panel.status.value
    assert "That was the last tile: the answer equals the exact answer" in panel.status.value
    assert not panel.picture.old.get_segments()


def test_the_last_bars_stand_at_the_exact_lines(panel):
    panel.slider.value = 3
    exact = np.exp(SCORES) @ VALUES / np.exp(SCORES).sum()
    assert np.allclose(heights(panel.picture.now), exact)
    assert np.allclose([segment[0, 1] for segment in panel.picture.truth.get_segments()], exact)


def test_parts_need_nothing_of_each_other_and_are_merged(panel):
    panel.mode.value = PARTS
    assert panel.slider.max == 4 and panel.slider.value == 1
    assert "part 1 of 3, keys 0 to 3, alone: maximum 2, sum" in panel.status.value
    panel.next.click()
    own = np.exp(SCORES[4:8]) @ VALUES[4:8] / np.exp(SCORES[4:8]).sum()
    assert np.allclose(heights(panel.picture.now), own)
    assert np.allclose(heights(panel.picture.rest)[:4], np.exp(SCORES[:4] - 2))  # not rescaled
    panel.slider.value = 4
    assert "the merge. A part counts exp(its log-sum" in panel.status.value
    assert "The merged answer equals the exact answer" in panel.status.value
    assert np.allclose(heights(panel.picture.rest), np.exp(SCORES) / np.exp(SCORES).sum())
    shown = [label.get_text() for label in panel.picture.part_names]
    assert len(shown) == 3 and abs(sum(int(x[:-1]) for x in shown) - 100) <= 1


@pytest.mark.parametrize("tile", [1, 2, 4, 8, 9])
@pytest.mark.parametrize("order", ORDERS)
def test_every_tile_size_and_order_ends_at_the_same_answer(panel, tile, order):
    exact = np.exp(SCORES) @ VALUES / np.exp(SCORES).sum()
    panel.tile.value, panel.order.value = tile, order
    for mode in (TILES, PARTS):
        panel.mode.value = mode
        panel.slider.value = panel.slider.max
        assert np.allclose(panel.frame().out, exact, rtol=1e-12)
        assert "equals the exact answer" in panel.status.value
        assert bytes(panel.image.value).startswith(b"\x89PNG")
    panel.mode.value, panel.slider.value = TILES, 0
    rescaled = 0
    for _ in range(panel.slider.max):
        panel.next.click()
        rescaled += "are multiplied by" in panel.status.value
    assert rescaled == (len(panel.softmax.starts) - 1 if order == "rising" else rescaled)
    assert order != "falling" or rescaled == 0


def test_the_buttons_walk_to_both_ends_and_stay(panel):
    for _ in range(6):
        panel.next.click()
    assert panel.slider.value == 3 and "That was the last step." in panel.status.value
    for _ in range(6):
        panel.previous.click()
    assert panel.slider.value == 0 and "There is no step before this." in panel.status.value
    assert "nothing is seen yet. Maximum −∞, sum 0, output 0. Next come 4 keys" in panel.status.value
    assert (heights(panel.picture.now) == 0).all() and (heights(panel.picture.rest) == 0).all()


def test_a_step_that_is_gone_with_a_larger_tile_becomes_the_last(panel):
    panel.tile.value = 1
    panel.slider.value = 9
    panel.tile.value = 9
    assert panel.slider.value == panel.slider.max == 1 and "Step 1 of 1, keys 0 to 8" in panel.status.value


def test_titles_name_lines_by_their_look_as_a_dark_theme_changes_colours(panel):
    for mode, said in [(TILES, "(solid line; dashed: before this tile)"), (PARTS, "of its own (line)")]:
        panel.mode.value = mode
        assert panel.picture.titles[panel.picture.scores].get_text().endswith(said)


def test_keys_in_another_order_are_counted_in_it(panel):
    panel.order.value = "falling"
    assert "Step 1 of 3, keys 0 to 3 in falling order:" in panel.status.value
    panel.tile.value = 1
    assert "Step 1 of 9, key 0 in falling order:" in panel.status.value
    panel.slider.value = 0
    assert "Next comes 1 key." in panel.status.value


EXTREMES = {
    "far apart": [1e4, -1e4, 0, 1e4, -1e4, 3, 2, 1, 0],
    "all equal and huge": [1e6] * 9,
    "all very low": [-1e4, -1e4 - 1, -1e4 + 1] * 3,
    "zeros": [0.0] * 9,
    "masked from the front": [-np.inf] * 5 + [1.0, 2, 3, 4],
    "masked behind": [1.0, 2, 3, 4] + [-np.inf] * 5,
    "masked between": [1.0, 2] + [-np.inf] * 6 + [4],
    "all masked": [-np.inf] * 9,
    "as large as may be": [1e6, -1e6, 0, 1e6, -1e6, 3, 2, 1, -np.inf],
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("tile", [1, 4])
def test_extreme_scores_are_exact_and_drawn(name, tile):
    scores = torch.tensor(EXTREMES[name], dtype=torch.float64)
    q, k = torch.ones(1, 1, 1, 1, dtype=torch.float64), scores[None, None, :, None]
    seen = torch.isfinite(scores)
    v = torch.from_numpy(VALUES)[None, None]
    k = k.masked_fill(~seen[:, None], 0).expand(1, 1, 9, 5) / 5**0.5  # q k^T / sqrt(5) is the score
    want, log_sum = attend_part(q.expand(1, 1, 1, 5), k, v, seen[None, :])
    panel = OnlineSoftmaxPanel(WORDS, scores.numpy(), VALUES, tile=tile)
    for mode in (TILES, PARTS):
        panel.mode.value = mode
        for step in sorted({0, 1, panel.slider.max // 2, panel.slider.max}):
            panel.slider.value = step
            assert "failed" not in panel.status.value and "nan" not in panel.status.value
            assert np.isfinite(heights(panel.picture.rest)).all()
            assert heights(panel.picture.rest).max() <= 1 + 1e-9
        assert np.allclose(panel.frame().out, want.flatten().numpy(), rtol=1e-7, atol=1e-9)
        assert "equals the exact answer" in panel.status.value
    assert np.isclose(panel.softmax.log_sum, log_sum.item()) or name == "all masked"


def test_one_key_and_as_many_as_there_is_room_for():
    alone = OnlineSoftmaxPanel(["Hi"], [3.0], [[1.0, -2.0]], tile=1)
    assert "Step 1 of 1, key 0:" in alone.status.value and "equals the exact answer" in alone.status.value
    assert [label for label, _ in alone.tile.options] == ["1"]
    random = np.random.default_rng(1)
    many = OnlineSoftmaxPanel(["word"] * 64, random.normal(size=64), random.normal(size=(64, 64)), tile=1)
    for mode in (TILES, PARTS):
        many.mode.value = mode
        many.slider.value = many.slider.max
        assert "equals the exact answer" in many.status.value
    assert "and 56 more" in many.status.value and len(many.picture.now) == 8
    with pytest.raises(ValueError, match="65 keys are more than the 64"):
        OnlineSoftmaxPanel(["word"] * 65, np.zeros(65), np.zeros((65, 2)))


@pytest.mark.parametrize(("count", "tile"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4)])
def test_without_a_tile_four_keys_come_at_a_time_or_all_of_fewer(count, tile):
    for mode in (TILES, PARTS):
        panel = OnlineSoftmaxPanel(WORDS[:count], SCORES[:count], VALUES[:count], mode=mode)
        assert panel.tile.value == panel.softmax.tile == tile
        panel.slider.value = panel.slider.max
        assert "equals the exact answer" in panel.status.value


def test_numpys_whole_numbers_are_whole_numbers():
    panel = OnlineSoftmaxPanel(WORDS, SCORES, VALUES, tile=np.int64(2), step=np.int32(3))
    assert panel.status.value == OnlineSoftmaxPanel(WORDS, SCORES, VALUES, tile=2, step=3).status.value


@pytest.mark.parametrize("scale", [1e100, 1e-300])
def test_values_of_any_size_that_is_taken_are_drawn(scale):
    panel = OnlineSoftmaxPanel(WORDS, SCORES, VALUES / np.abs(VALUES).max() * scale)
    for mode in (TILES, PARTS):
        panel.mode.value = mode
        panel.slider.value = panel.slider.max
        assert "equals the exact answer" in panel.status.value
        assert bytes(panel.image.value).startswith(b"\x89PNG")


def test_no_text_leaves_the_picture_or_covers_another(panel):
    renderer = panel.picture.figure.canvas.get_renderer()
    for mode in (TILES, PARTS):
        for tile in (1, 4, 9):
            panel.mode.value, panel.tile.value = mode, tile
            for step in range(panel.slider.max + 1):
                panel.slider.value = step
                texts = [t for t in panel.picture.figure.texts if t.get_text()]
                texts += [t for t in panel.picture.part_names if t.get_text()]
                texts += [panel.picture.answer.xaxis.label, *panel.picture.kept.get_xticklabels()]
                boxes = [(t.get_window_extent(renderer), t.get_text()) for t in texts]
                for i, (box, text) in enumerate(boxes):
                    assert box.x0 >= 0 and box.x1 <= WIDTH and box.y0 >= 0 and box.y1 <= HEIGHT, text
                    for other, other_text in boxes[i + 1 :]:
                        assert not box.overlaps(other), (text, other_text)


@pytest.mark.parametrize("count", [11, 24])
@pytest.mark.parametrize("shift", [-12.345, 0.0, 123.0])
def test_log_sums_and_shares_of_many_small_parts_keep_apart(count, shift):
    random = np.random.default_rng(3)
    scores, values = random.normal(size=count) * 2 + shift, random.normal(size=(count, 4))
    panel = OnlineSoftmaxPanel(["word"] * count, scores, values, tile=1, mode=PARTS)
    renderer = panel.picture.figure.canvas.get_renderer()
    for tile in (1, 2, 4):
        panel.tile.value = tile
        for step in (panel.slider.max - 1, panel.slider.max):
            panel.slider.value = step
            shown = [t for t in panel.picture.part_names if t.get_text()]
            boxes = [t.get_window_extent(renderer) for t in shown]
            assert boxes and boxes[-1].x1 < panel.picture.answer.get_window_extent(renderer).x0
            assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:]))
            assert "above:" in panel.picture.titles[panel.picture.kept].get_text()


def test_a_negative_number_behind_a_minus_stands_in_brackets():
    panel = OnlineSoftmaxPanel(WORDS, SCORES - 5, VALUES, step=2)
    assert "exp(−3 − (−1.5)) = " in panel.status.value
    panel.mode.value = PARTS
    panel.slider.value = panel.slider.max
    assert f"its log-sum − ({number(panel.softmax.log_sum)})" in panel.status.value


def test_the_saved_form_is_the_same_each_time(panel):
    data = saved_form(panel)
    assert "One query's softmax over 9 keys, tile by tile. Step 1 of 3" in data["text/plain"]
    panel.slider.value = 3
    assert panel.summary() == data["text/plain"]  # it tells of what it opened with


def test_an_error_is_shown_and_the_panel_goes_on(panel, monkeypatch):
    shows_an_error_and_goes_on(panel, monkeypatch, "Step 3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tile": 0}, "tile 0"),
        ({"tile": 10}, "at most the 9 keys"),
        *(({"tile": tile}, "whole number") for tile in (True, 1.5, 2.0, "2", [2], np.nan)),
        ({"step": 4}, "step 4"),
        *(({"step": step}, "step") for step in (-1, True, 1.5, 2.0, "2", None, np.nan)),
        ({"mode": "whole"}, "mode is"),
        ({"words": ["one"]}, "1 words for 9 keys"),
        ({"scores": np.zeros((9, 1))}, "must be"),
        ({"values": VALUES[:3]}, "one row a key"),
        ({"scores": np.full(9, np.nan)}, "finite"),
        ({"scores": np.full(9, np.inf)}, "finite"),
        ({"values": VALUES * np.nan}, "finite"),
        ({"scores": SCORES * (1e308 / 3.5)}, "scores must be at most 1,000,000"),
        ({"scores": np.full(9, -1e308)}, "scores must be at most 1,000,000"),
        ({"scores": np.full(9, 1.1e6)}, "scores must be at most 1,000,000"),
        ({"values": VALUES * 1e200}, "values must be at most 1e.100"),
    ],
)
def test_refuses_what_does_not_belong_together(change, words):
    with pytest.raises(ValueError, match=words):
        OnlineSoftmaxPanel(**{"words": WORDS, "scores": SCORES, "values": VALUES} | change)


def test_the_order_of_the_keys_is_refused_too():
    with pytest.raises(ValueError, match="order one of"):
        OnlineSoftmax(WORDS, SCORES, VALUES, order="random")


def test_of_a_model_it_ends_at_the_models_own_output():
    model, tokenizer = random_model(), ByteTokenizer()
    tokens = tokenizer.encode("a short text")
    passed = []

    def look(q, k, v, mask=None):
        out = reference_attention(q, k, v, mask)
        passed.append(out)
        return out

    with model.attending(look):
        model(torch.tensor([tokens]))
    panel = OnlineSoftmaxPanel.of_model(model, tokenizer, tokens, layer=2, query_head=5, tile=4)
    assert panel.softmax.num_keys == len(tokens)
    panel.slider.value = panel.slider.max
    assert np.allclose(panel.frame().out, passed[2][0, 5, -1].numpy(), atol=1e-5)
    assert sentence(panel.softmax, panel.frame()).endswith("equals the exact answer.")
    with pytest.raises(ValueError, match="layer 4"):
        OnlineSoftmaxPanel.of_model(model, tokenizer, tokens, layer=4)
