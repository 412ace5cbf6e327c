"""The head-sharing panel at every extreme, without a browser."""

import pytest
from matplotlib.colors import to_hex

from kvlib.lab import style
from kvlib.lab.sharing import SharingPanel
from kvlib.lab.sharing_view import RIGHT, TILE, Sharing, sharing_presets
from kvlib.memory import MODELS, ModelPreset


@pytest.fixture
def panel():
    return SharingPanel()


def status(panel):
    return panel.status.value


def links(panel):
    """Return, for every line, the index of the KV head it ends at."""
    ends = [round(segment[1][0], 3) for segment in panel.picture.links.get_segments()]
    order = sorted(set(round(path.vertices[:4, 0].mean(), 3) for path in panel.picture.kv.get_paths()))
    return [order.index(min(order, key=lambda x: abs(x - end))) for end in ends]


def test_opens_with_the_models_own_heads(panel):
    assert {"kvlib-panel", "kvlib-sharing"} <= set(panel._dom_classes)
    assert "query head 0 reads KV head 0, as h // G = 0 // 3 = 0" in status(panel)
    assert "Query heads 1 and 2 read it too." in status(panel)
    assert "23,040 bytes of cache a token" in status(panel) and "Arithmetic" not in status(panel)
    assert links(panel) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert bytes(panel.image.value).startswith(b"\x89PNG")


def test_next_and_previous_go_round(panel):
    panel.previous.click()
    assert panel.head.value == 8 and "query head 8 reads KV head 2" in status(panel)
    panel.next.click()
    panel.next.click()
    assert panel.head.value == 1
    strong = style.TEXT_COLORS["GQA"].lower()
    full = [to_hex(c) == strong for c in panel.picture.queries.get_facecolors()]
    assert full == [True] * 3 + [False] * 6


def test_tile_order_is_drawn_and_called_wrong(panel):
    panel.head.value = 4
    panel.order.value = TILE
    assert links(panel) == [0, 1, 2] * 3
    assert panel.picture.title.get_text() == "Tile order: 6 of 9 query heads read the wrong KV head"
    assert "it happens to give the right head" in status(panel)  # 4 % 3 == 4 // 3
    panel.head.value = 3
    assert "the right KV head is 1" in status(panel)
    panel.kv_heads.value = 1
    assert "both orders are the same" in panel.picture.title.get_text()


def test_both_ends(panel):
    panel.kv_heads.value = 9
    assert panel.picture.title.get_text() == "MHA: each of 9 query heads reads a KV head of its own"
    assert links(panel) == list(range(9)) and "read it too" not in status(panel)
    assert "Arithmetic only: the trained model has 3 KV heads." in status(panel)
    panel.kv_heads.value = 1
    assert panel.picture.title.get_text() == "MQA: all 9 query heads read one KV head"
    assert links(panel) == [0] * 9


@pytest.mark.parametrize("name", sharing_presets())
def test_every_model_with_every_number_of_kv_heads(panel, name):
    panel.head.value = 8
    panel.model.value = name
    preset = MODELS[name]
    assert [n for _, n in panel.kv_heads.options] == list(reversed(preset.kv_head_choices))
    assert panel.kv_heads.value == preset.num_kv_heads and panel.head.max == preset.num_heads - 1
    panel.head.value = preset.num_heads - 1
    ends = {1, preset.num_kv_heads, preset.num_heads}
    for n in sorted(ends):
        panel.kv_heads.value = n
        assert "Error" not in status(panel)
        panel.order.value = TILE if panel.order.value == RIGHT else RIGHT
        assert "Error" not in status(panel)
        g = preset.num_heads // n
        assert f"folded to  (1, {n}, {g}, {preset.head_dim})" in panel.picture.shapes.get_text()
        assert f"{preset.with_kv_heads(n).bytes_per_token(2):,} bytes" in status(panel)
        share = panel.picture.filled.get_width() / panel.picture.whole.get_width()
        assert share == pytest.approx(n / preset.num_heads)


def test_a_shape_with_fewer_heads_takes_the_selected_head_along(panel):
    panel.model.value = "Llama 3.1 70B"
    panel.head.value = 63
    panel.model.value = "SmolLM2 135M"
    assert panel.head.value == 8 and "Error" not in status(panel)


def test_no_words_leave_the_picture_or_meet(panel):
    for name, n in (("SmolLM2 135M", 3), ("Llama 3.1 70B", 64), ("Falcon 7B", 1)):
        panel.model.value, panel.kv_heads.value = name, n
        for head in (0, panel.head.max):
            panel.head.value = head
            width, height = panel.picture.figure.canvas.get_width_height()
            boxes = [t.get_window_extent() for t in panel.picture.axes.texts if t.get_text()]
            assert all(b.x0 >= 0 and b.x1 <= width and b.y0 >= 0 and b.y1 <= height for b in boxes)
            apart = [not a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i]]
            assert all(apart), (name, n, head)


def test_the_saved_text_is_the_same_on_every_run(panel):
    first = panel._repr_mimebundle_()["text/plain"]
    panel.next.click()
    assert panel._repr_mimebundle_()["text/plain"] == first
    assert "SmolLM2 135M with 3 KV heads (GQA)" in first and "<img" in panel._repr_mimebundle_()["text/html"]


def test_a_drawing_that_fails_lands_in_the_status(panel, monkeypatch):
    monkeypatch.setattr(panel.picture, "update", lambda it: 1 / 0)
    panel.head.value = 2
    assert "ZeroDivisionError" in status(panel)


def test_a_shape_of_ones_own_and_what_is_refused():
    own = ModelPreset("Own", 1, 6, 2, 8, 16, 16, 16, True)
    panel = SharingPanel(own, num_kv_heads=3, head=5)
    assert "Own with 3 KV heads (GQA): query head 5 reads KV head 2" in status(panel)
    for options, words in [
        (dict(preset="No such"), "is not one of"),
        (dict(num_kv_heads=2), "9 query heads can share 1, 3, 9 KV heads, not 2"),
        (dict(head=9), "head 9 is not one of 0 to 8"),
        (dict(preset=MODELS["DeepSeek V3"]), "has no KV heads to share"),
    ]:
        with pytest.raises(ValueError, match=words):
            SharingPanel(**options)


def test_one_head_of_one_is_mha():
    assert Sharing(ModelPreset("One", 1, 1, 1, 8, 8, 8, 8, True), 1, 0).kind == "MHA"
