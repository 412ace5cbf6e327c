"""The memory panel without a browser: numbers against the formula, words, and every extreme."""

import itertools
import re

import pytest
import torch

from kvlib.devices import available_devices
from kvlib.lab import memory_picture, memory_words
from kvlib.lab.curves import CONTEXTS
from kvlib.lab.memory_panel import MemoryPanel, devices_here
from kvlib.lab.memory_view import BITS, MOST_REQUESTS, STAIRS, MemorySetting, attention_kind
from kvlib.lab.words import rounded
from kvlib.memory import DEVICES, GB, MODELS, DevicePreset, ModelPreset, kv_cache_bytes

H100, LLAMA = DEVICES["H100 SXM"], MODELS["Llama 3.1 8B"]


@pytest.fixture(scope="module")
def shared():
    """Return one panel for the tests that set all of its controls."""
    return MemoryPanel()


def put(panel, **values):
    for name, value in values.items():
        getattr(panel, name).value = value
    return panel


def said(panel):
    return re.sub("<[^>]+>", "", panel.status.value)


def shown(label):
    return label.get_text()


# Numbers ----------------------------------------------------------------------------------------


def test_the_setting_computes_what_the_formula_says():
    setting = MemorySetting(LLAMA, H100, 32768, 8)
    one = kv_cache_bytes(num_layers=32, num_kv_heads=8, head_dim=128, seq_len=32768)
    assert setting.one_request() == one and setting.cache == 8 * one
    assert setting.weights == 2 * 8_030_261_248
    assert setting.free == H100.memory_bytes - setting.weights - 8 * one
    assert setting.fitting() == 16 == (H100.memory_bytes - setting.weights) // one
    assert setting.longest() == (H100.memory_bytes - setting.weights) // (8 * 131_072)
    assert MemorySetting(LLAMA, H100, 32768, 8, 4, 8).weights == 8_030_261_248 // 2
    assert MemorySetting(LLAMA, H100, 32768, 8, 4, 8).cache == 4 * one


@pytest.mark.parametrize("name", MODELS)
def test_as_many_fit_as_fit_and_no_more(name):
    for device, context in itertools.product(DEVICES.values(), (128, 8192, 131_072)):
        setting = MemorySetting(MODELS[name], device, context, 3, 8, 8)
        count = setting.fitting()
        assert setting.weights + count * setting.one_request() <= device.memory_bytes or count == 0
        assert setting.weights + (count + 1) * setting.one_request() > device.memory_bytes
        longest = setting.longest()
        if longest:
            assert setting.weights + 3 * setting.one_request(longest) <= device.memory_bytes
        assert setting.weights + 3 * setting.one_request(longest + 1) > device.memory_bytes


def test_windows_bend_the_curve_and_their_absence_is_drawn():
    gemma = MemorySetting(MODELS["Gemma 3 27B"], H100, 131_072, 1)
    assert gemma.one_request() == 8192 * (10 * 131_072 + 52 * 1024)
    assert gemma.without_window().one_request() == 507_904 * 131_072
    assert gemma.cache_curve()[0] == gemma.without_window().cache_curve()[0]


def test_a_context_without_end_has_none():
    endless = ModelPreset("all windows", 2, 4, 2, 8, 32, 64, 100, window=16)
    assert MemorySetting(endless, H100, 128, 1).longest() is None
    assert "any number of tokens" in memory_words.sentence(MemorySetting(endless, H100, 128, 1))


def test_kinds_of_attention():
    kinds = {name: attention_kind(preset) for name, preset in MODELS.items()}
    assert kinds["Llama 2 7B"] == kinds["GPT-2"] == kinds["Phi-3-mini"] == "MHA"
    assert kinds["Falcon 7B"] == "MQA" and kinds["DeepSeek V3"] == "MLA"
    assert kinds["Llama 3.1 70B"] == kinds["SmolLM2 135M"] == "GQA"


# Words and artists ------------------------------------------------------------------------------


def test_opens_with_the_numbers_and_the_classes(shared):
    panel = MemoryPanel()
    assert {"kvlib-panel", "kvlib-memory"} <= set(panel._dom_classes)
    assert said(panel) == (
        "Llama 3.1 8B on H100 SXM: 16.1 GB of weights at 16 bits, and a cache of 8 × 4.29 GB = "
        "34.4 GB at 16 bits for 8 requests of 32,768 tokens. Together 50.4 GB of 85.5 GB; 35.1 GB "
        "stay free. The cache dominates: 2.1 times the weights. At most 16 requests of this "
        "context fit; 8 requests may have up to 66,242 tokens each."
    )
    assert bytes(panel.image.value).startswith(b"\x89PNG")


def test_the_70b_model_on_an_h100_says_by_how_much_it_does_not_fit(shared):
    put(shared, model="Llama 3.1 70B", device="H100 SXM", context=32768, requests=8,
        weight_bits=16, cache_bits=16)  # fmt: skip
    assert "141 GB of weights" in said(shared) and "8 × 10.7 GB = 85.9 GB" in said(shared)
    assert "exceed the 85.5 GB of memory by 55.6 GB; with the cache, 141 GB are missing" in said(shared)
    assert shown(shared.picture.title) == "The weights alone are 55.6 GB too large for H100 SXM"
    assert len(shared.picture.stairs.get_xdata()) == 0
    put(shared, weight_bits=4)
    assert "At most 4 requests" in said(shared) and "exceeds the 85.5 GB" in said(shared)
    assert "scale factors" in said(shared)
    put(shared, requests=4)
    assert shown(shared.picture.title).startswith("Fits: ")


def test_one_too_many_and_one_that_fits(shared):
    put(shared, model="Llama 3.1 8B", weight_bits=16, cache_bits=16, context=32768, requests=16)
    assert shown(shared.picture.title).startswith("Fits: 741 MB of H100 SXM stay free")
    put(shared, requests=17)
    assert shown(shared.picture.title) == "Does not fit: 3.55 GB more than H100 SXM has"
    assert shown(shared.picture.asked_label) == "17 do not fit"
    assert shown(shared.picture.possible_label) == "at most 16"


def test_no_request_of_a_context_but_a_shorter_one():
    card = DevicePreset("card", 17 * GB, 0.0)
    words = memory_words.sentence(MemorySetting(LLAMA, card, 32768, 1))
    assert "No request of this context fits; one alone may have 7,167 tokens." in words
    full = DevicePreset("full", LLAMA.weight_bytes(2) + 5, 0.0)
    assert "Not even one token" in memory_words.sentence(MemorySetting(LLAMA, full, 128, 1))
    exact = DevicePreset("exact", LLAMA.weight_bytes(2) + 131_072 * 128, 0.0)
    assert memory_words.main_title(MemorySetting(LLAMA, exact, 128, 1)).startswith("Fits exactly")


def test_the_larger_part_is_named(shared):
    put(shared, model="Llama 3.1 8B", device="H100 SXM", context=128, requests=1)
    assert "The weights dominate" in said(shared)
    put(shared, context=131_072, requests=4)
    assert "The cache dominates" in said(shared)
    exact = DevicePreset("x", 10**12, 0.0)
    tokens = LLAMA.weight_bytes(2) // 131_072
    assert "equally large" in memory_words.sentence(MemorySetting(LLAMA, exact, tokens, 1))


def test_the_title_names_the_first_context_at_which_the_cache_is_larger():
    setting = MemorySetting(MODELS["Gemma 3 27B"], H100, 128, 10)
    crossing = memory_words.crossing_context(setting)
    assert 10 * setting.one_request(crossing) > setting.weights
    assert 10 * setting.one_request(crossing - 1) <= setting.weights
    assert f"at about {rounded(crossing)} tokens" in memory_words.cache_title(setting)
    assert memory_words.crossing_context(MemorySetting(MODELS["Falcon 7B"], H100, 128, 1)) is None


def test_artists_hold_the_numbers(shared):
    put(shared, model="Gemma 2 9B", device="A100 40GB", context=8192, requests=3,
        weight_bits=8, cache_bits=32)  # fmt: skip
    setting, picture = shared.setting, shared.picture
    assert list(picture.all.get_ydata()) == [
        MODELS["Gemma 2 9B"].cache_bytes(c, 3, 4) for c in STAIRS
    ]
    assert list(picture.one.get_ydata()) == [MODELS["Gemma 2 9B"].cache_bytes(c, 1, 4) for c in STAIRS]
    assert picture.unwindowed.get_ydata()[-1] == 3 * 2 * 344_064 * 131_072
    assert list(picture.limit.get_ydata()) == [40 * 2**30] * 2
    assert list(picture.cache.level.get_ydata()) == [setting.weights] * 2
    assert (picture.chosen.get_xdata()[0], picture.chosen.get_ydata()[0]) == (8192, setting.cache)
    contexts, counts = picture.stairs.get_data()
    assert all(
        count == (setting.memory - setting.weights) // setting.one_request(context)
        for context, count in zip(contexts, counts, strict=True)
    )
    scale = max(setting.total, setting.memory)
    assert picture.weights.get_width() == setting.weights / scale
    assert picture.filled.get_width() == setting.cache / scale
    assert picture.filled.get_x() == picture.weights.get_width()
    assert picture.outline.get_width() == setting.memory / scale
    assert len(picture.blocks.get_segments()) == 3


def test_a_request_is_a_block_only_where_it_is_wide_enough(shared):
    put(shared, model="SmolLM2 135M", device="B200", context=128, requests=MOST_REQUESTS,
        weight_bits=16, cache_bits=16)  # fmt: skip
    assert len(shared.picture.blocks.get_segments()) == 1
    put(shared, model="Llama 3.1 8B", device="H100 SXM", context=32768, requests=8)
    assert len(shared.picture.blocks.get_segments()) == 8


# Extremes ---------------------------------------------------------------------------------------


def ends():
    """Every model with few and many bytes, on each device in turn."""
    devices = itertools.cycle([*DEVICES, *devices_here()])
    for index, name in enumerate(MODELS):
        yield name, next(devices), CONTEXTS[0], 1, BITS[-1], BITS[-1]
        yield name, next(devices), CONTEXTS[-1], MOST_REQUESTS, BITS[0], BITS[0]
        if index % 3 == 0:
            yield name, "B200", CONTEXTS[5], 7, BITS[-1], BITS[0]


def test_no_sentence_of_any_setting_fails():
    devices = [*DEVICES.values(), *devices_here().values()]
    requests = (1, 2, MOST_REQUESTS)
    bits = ((32, 32), (4, 4), (32, 4))
    for preset, device in itertools.product(MODELS.values(), devices):
        for context, count, (w, c) in itertools.product((128, 131_072), requests, bits):
            setting = MemorySetting(preset, device, context, count, w, c)
            words = memory_words.sentence(setting)
            assert f"{context:,} tokens" in words and preset.name in words
            fits = setting.total <= device.memory_bytes
            assert ("exceed" in words) == (not fits)
            assert memory_words.main_title(setting).startswith("Fits") == fits
            assert memory_words.fitting_title(setting) and memory_words.cache_title(setting)


def test_no_label_is_cut_or_covered_at_the_ends_of_all_controls_at_once():
    picture, devices = memory_picture.MemoryPicture(), {**DEVICES, **devices_here()}
    for model, device, *numbers in ends():
        picture.update(MemorySetting(MODELS[model], devices[device], *numbers))
        check_labels(picture, (model, device, *numbers))


def test_every_option_of_every_control_is_drawn_and_said(shared):
    put(shared, model="Llama 3.1 8B", device="H100 SXM", context=32768, requests=8,
        weight_bits=16, cache_bits=16)  # fmt: skip
    for control in shared.controls:
        for option in getattr(control, "options", (1, MOST_REQUESTS)):
            control.value = value = option[1] if isinstance(option, tuple) else option
            assert "Error" not in said(shared), value
            assert shared._drawn == shared.setting


def check_labels(picture, about):
    renderer = picture.figure.canvas.get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in picture.labels()]
    for words, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0
        assert inside and box.x1 <= memory_picture.WIDTH and box.y1 <= memory_picture.HEIGHT, (
            words, about
        )  # fmt: skip
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        apart = (
            one.x1 <= other.x0 + 0.5 or other.x1 <= one.x0 + 0.5
            or one.y1 <= other.y0 + 1.5 or other.y1 <= one.y0 + 1.5
        )  # fmt: skip
        assert apart, f"{a!r} lies on {b!r}: {about}"


def test_requests_are_held_to_their_range_and_every_list_to_its_options(shared):
    shared.requests.value = 10**9
    assert shared.setting.requests == MOST_REQUESTS
    shared.requests.value = -5
    assert shared.setting.requests == 1
    with pytest.raises(Exception, match="(?i)invalid"):
        shared.weight_bits.value = 3


def test_a_redraw_is_what_a_fresh_panel_draws(shared):
    put(shared, model="Falcon 7B", device="T4", context=128, requests=500, weight_bits=32)
    put(shared, model="Llama 3.1 8B", device="H100 SXM", context=32768, requests=8,
        weight_bits=16, cache_bits=16)  # fmt: skip
    assert shared.picture.png() == MemoryPanel().picture.png()


# Machine, failures, notebook --------------------------------------------------------------------


def test_every_device_of_this_machine_is_on_offer(shared):
    offered = [value for _, value in shared.device.options]
    assert offered == [*DEVICES, *map(str, available_devices())]
    for name in map(str, available_devices()):
        put(shared, device=name)
        assert f"this machine ({name})" in said(shared)
        assert "GB" not in shared.summary() and "this machine" in shared.summary()


def test_nothing_is_allocated(shared, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the panel allocates a tensor")

    for maker in ("empty", "zeros", "randn", "ones"):
        monkeypatch.setattr(torch, maker, refuse)
    put(shared, model="Llama 3.1 405B", device="MI300X", context=131_072, requests=MOST_REQUESTS)
    assert "Error" not in said(shared)


def test_a_failure_is_said_and_the_panel_goes_on(shared, monkeypatch):
    def fail(*args):
        raise RuntimeError("no canvas")

    with monkeypatch.context() as patch:
        patch.setattr(shared.picture, "update", fail)
        put(shared, requests=77)
        assert "RuntimeError: no canvas The panel still works" in said(shared)
    put(shared, requests=78)
    assert "Error" not in said(shared)


@pytest.mark.parametrize(
    "wrong",
    [{"model": "Llama 9"}, {"device": "H1000"}, {"context": 100}, {"requests": 0},
     {"requests": 5000}, {"requests": True}, {"weight_bits": 3}, {"cache_bits": 64}],
)  # fmt: skip
def test_what_is_not_on_offer_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        MemoryPanel(**wrong)


def test_a_learners_own_model_and_device():
    own = ModelPreset("mine", 4, 8, 2, 16, 128, 256, 1000)
    panel = MemoryPanel(own, DevicePreset("laptop", 4 * GB, 0.0), context=128, requests=1)
    assert "mine on laptop" in said(panel) and "laptop, 4 GB" in dict(panel.device.options)


def test_half_a_byte_is_rounded_up():
    odd = ModelPreset("odd", 1, 1, 1, 1, 1, 1, 2, tie_embeddings=True, latent_dim=3, rope_dim=1,
                      query_rank=2)  # fmt: skip
    setting = MemorySetting(odd, H100, 129, 1, 4, 4)
    assert setting.one_request() == 194 == -(-129 * 3 // 2)
    assert setting.weights == -(-odd.num_params // 2)


def test_the_notebook_keeps_words_and_a_picture_that_repeat():
    panel = MemoryPanel()
    bundle = panel._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == panel.summary() == f"Memory panel: {said(panel)}"
    assert data["text/html"] == MemoryPanel()._repr_mimebundle_()["text/html"] or isinstance(bundle, tuple)
    assert "application/vnd.jupyter.widget-view+json" in data
