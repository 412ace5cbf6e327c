"""The filling panel without a browser: every end of every control, its sentence and its picture."""

import numpy as np
import pytest
import torch

from kvlib import KVCache
from kvlib.attention import reference_attention
from kvlib.lab.filling import FillingPanel
from kvlib.lab.filling_picture import FUTURE, GONE, HEIGHT, NEW, WIDTH, ZERO, _rgb
from kvlib.lab.filling_steps import Filling, causal_weights
from kvlib.teach.course_model import ByteTokenizer, random_model
from tests.lab.stepping import saved_form, shows_an_error_and_goes_on

WORDS = ["The", "cat", "sat", "on", "the", "mat"]


def arrays(layers=1, tokens=6, size=4):
    return np.random.default_rng(0).normal(size=(3, layers, tokens, size))


@pytest.fixture
def panel():
    return FillingPanel(WORDS, *arrays(layers=3), prefill=3)


def shape(panel, key):
    return panel.picture.panes[key].shape.get_text()


def test_opens_on_the_prefill_as_one_block(panel):
    assert {"kvlib-panel", "kvlib-filling"} <= set(panel._dom_classes)
    assert panel.filling.ends == [0, 3, 4, 5, 6] and panel.slider.max == 4
    assert (panel.frame().start, panel.frame().end) == (0, 3)
    assert "prefill: 3 tokens in one pass. 3 new rows of K and of V" in panel.status.value
    assert [shape(panel, key) for key in panel.picture.panes] == [
        "(3, 4)", "(3, 4)", "(3, 4)", "(3, 3)", "(3, 4)", "3 × 3 rows",
    ]  # fmt: skip


def test_a_decode_step_makes_one_row_and_keeps_k_and_v_only(panel):
    panel.next.click()
    assert "Step 2, decode: “on” at position 3. 1 new row of K and of V" in panel.status.value
    assert "1 query makes 1 row of scores, over 4 keys, its own included" in panel.status.value
    shapes = [shape(panel, key) for key in ("q", "k", "v", "weights", "output")]
    assert shapes == ["(1, 4)", "(4, 4)", "(4, 4)", "(1, 4)", "(1, 4)"]
    fates = {key: pane.fate.get_text() for key, pane in panel.picture.panes.items()}
    assert fates["k"] == fates["v"] == "kept: 4 rows"
    assert fates["q"] == fates["weights"] == fates["output"] == "not kept"
    panes = panel.picture.panes
    assert np.ptp(panes["q"].image.get_array()[:3], axis=(0, 1)).max() == 0  # old queries are gone
    assert np.ptp(panes["k"].image.get_array()[:3], axis=(0, 1)).max() > 0  # old keys are there
    numbers = [n.get_text() for n in panel.picture.numbers if n.get_text()]
    assert len(numbers) == 4 and abs(sum(map(int, numbers)) - 100) <= 2


def test_a_kept_row_never_changes_its_colour_and_zero_has_one():
    q, k, v = arrays()[:, 0]
    k[1] = 0
    panel = FillingPanel(WORDS, q, k, v, prefill=2)
    keys, queries = (panel.picture.panes[key] for key in "kq")
    new = keys.image.get_array()[:2].copy()
    assert np.allclose(new[1], _rgb(ZERO), atol=0.01) and not queries.gone.get_visible()
    panel.slider.value = 4
    assert np.array_equal(keys.image.get_array()[:2], new) and not keys.gone.get_visible()
    assert queries.gone.get_visible() and queries.gone.get_xy()[:, 1].max() == 4


def test_the_key_names_each_colour_and_they_are_far_apart(panel):
    words = " ".join(label.get_text() for label in panel.picture.labels())
    for part in ("new in this step", "computed earlier, gone", "future", "below 0", "above 0", "weight 0"):
        assert part in words
    light = [float(_rgb(c) @ [0.2126, 0.7152, 0.0722]) for c in (ZERO, FUTURE, GONE)]
    assert min(-np.diff(light)) > 0.05


def test_the_buttons_walk_to_both_ends_and_stay(panel):
    for _ in range(9):
        panel.next.click()
    assert panel.slider.value == 4 and "That was the last token." in panel.status.value
    for _ in range(9):
        panel.previous.click()
    assert panel.slider.value == 0 and "This is the empty cache." in panel.status.value
    assert "The next pass runs 3 tokens." in panel.status.value
    assert not panel.next.disabled and not panel.previous.disabled
    assert shape(panel, "k") == "(0, 4)" and shape(panel, "q") == ""


def test_every_step_of_every_layer_draws_and_says_something_of_its_own(panel):
    seen, pictures = set(), set()
    for layer in range(3):
        panel.layer.value = layer
        for step in range(5):
            panel.slider.value = step
            assert bytes(panel.image.value).startswith(b"\x89PNG")
            seen.add(panel.status.value)
            pictures.add(bytes(panel.image.value))
    assert len(pictures) == 15 and len(seen) == 13  # the empty cache is the same in every layer


def test_every_layer_fills_and_the_shown_one_is_framed(panel):
    panel.layer.value = 2
    panel.slider.value = 4
    assert "In layer 2, “mat” puts the most weight" in panel.status.value
    assert panel.picture.selected.get_x() == 2
    strip = panel.picture.panes["layers"].image.get_array()
    assert np.allclose(strip[5], _rgb(NEW)) and not np.allclose(strip[4], _rgb(NEW))


def test_chunks_of_a_prompt_are_steps_of_their_own():
    panel = FillingPanel(WORDS, *arrays()[:, 0], prefill=(2, 3), step=2)
    assert panel.filling.ends == [0, 2, 5, 6]
    assert "prefill, chunk 2 of 2: 3 tokens" in panel.status.value
    assert shape(panel, "weights") == "(3, 5)"
    assert "layers" not in panel.picture.panes and panel.layer not in panel.children[1].children


def test_one_token_and_a_whole_text_in_one_pass():
    q, k, v = arrays(tokens=1)
    alone = FillingPanel(["Hi"], q, k, v)
    assert "It can attend only to itself." in alone.status.value
    assert alone.picture.panes["k"].fate.get_text() == "kept: 1 row"
    whole = FillingPanel(WORDS, *arrays(), prefill=6)
    assert whole.slider.max == 1


def test_a_long_text_of_many_layers_keeps_every_label_apart():
    panel = FillingPanel([f"word{i}" for i in range(120)], *arrays(30, 120, 64), prefill=100)
    for step in (0, 1, 2, 11, panel.slider.max):
        panel.slider.value = step
        shown = [label for label in panel.picture.words if label.get_text()]
        heights = sorted(label.get_position()[1] for label in shown)
        assert min(np.diff(heights)) >= 12
    assert not [n for n in panel.picture.numbers if n.get_text()]


def test_no_label_leaves_the_picture_or_covers_another(panel):
    renderer = panel.picture.figure.canvas.get_renderer()
    for step in range(5):
        panel.slider.value = step
        boxes = []
        for label in panel.picture.labels():
            width = renderer.get_text_width_height_descent(
                label.get_text(), label.get_fontproperties(), ismath=False
            )[0]
            x, y = label.get_position()
            x -= width if label.get_horizontalalignment() == "right" else 0
            assert x >= 0 and x + width <= WIDTH and 0 <= y <= HEIGHT - 10, label.get_text()
            boxes.append((x, x + width, y, label.get_text()))
        for i, (left, right, y, text) in enumerate(boxes):
            for other_left, other_right, other_y, other in boxes[i + 1 :]:
                apart = left >= other_right or other_left >= right or abs(y - other_y) >= 12
                assert apart, (text, other)


def test_weights_and_output_are_those_of_attention():
    q, k, v = arrays()
    frame = Filling(WORDS, q, k, v).frame(6)
    tensors = [torch.from_numpy(x)[None] for x in (q, k, v)]
    assert np.allclose(frame.output, reference_attention(*tensors)[0, 0].numpy(), rtol=1e-12)
    assert np.allclose(causal_weights(1e4 * q[0], k[0]).sum(axis=-1), 1)  # no overflow


def test_the_saved_form_is_the_same_each_time(panel):
    data = saved_form(panel)
    assert "a prompt of 3 tokens, then 3 one at a time" in data["text/plain"]


def test_an_error_is_shown_and_the_panel_goes_on(panel, monkeypatch):
    shows_an_error_and_goes_on(panel, monkeypatch, "Step 3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefill": 0}, "at least 1"),
        ({"prefill": 7}, "at most the 6 tokens"),
        ({"prefill": ()}, "at least 1"),
        ({"prefill": (4, 3)}, "at most the 6 tokens"),
        ({"step": 9}, "step 9"),
        ({"layer": 1}, "layer 1"),
        ({"words": ["one"]}, "1 words for 6 rows"),
        ({"k": np.zeros((6, 5))}, "one shape"),
        ({"q": np.zeros(6), "k": np.zeros(6), "v": np.zeros(6)}, "one shape"),
    ],
)
def test_refuses_what_does_not_belong_together(change, words):
    given = dict(zip("qkv", arrays()[:, 0])) | {"words": WORDS} | change
    with pytest.raises(ValueError, match=words):
        FillingPanel(**given)


class Noting(KVCache):
    """Keep what the last update returned."""

    def update(self, k_new, v_new):
        self.seen = super().update(k_new, v_new)
        return self.seen


def test_of_a_model_it_shows_the_keys_values_and_outputs_of_its_own_attention():
    model, tokenizer = random_model(), ByteTokenizer()
    tokens = tokenizer.encode("a short text")
    outputs = []  # what attention hands to its output projection, (1, T, heads x D)
    for layer in model.layers:
        layer.attention.out.register_forward_hook(lambda m, given, out: outputs.append(given[0][0]))
    caches = model.make_caches(Noting)
    model(torch.tensor([tokens]), caches)
    panel = FillingPanel.of_model(model, tokenizer, tokens, query_head=5, prefill=8)
    assert panel.filling.num_layers == 4 and panel.filling.num_tokens == len(tokens)
    for i, cache in enumerate(caches):
        k, v = (x[0, 5 // 3].numpy() for x in cache.seen)
        assert np.allclose(panel.filling.k[i], k, atol=1e-5)
        assert np.allclose(panel.filling.v[i], v, atol=1e-5)
        mine = panel.filling.frame(1, i).output
        assert np.allclose(mine, outputs[i].unflatten(-1, (9, 16))[:, 5].numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="query_head 9"):
        FillingPanel.of_model(model, tokenizer, tokens, query_head=9)
