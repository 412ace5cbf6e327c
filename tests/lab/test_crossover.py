"""The crossover panel without a browser: arithmetic, words, every extreme, measuring, failing."""

import itertools

import numpy as np
import pytest

from kvlib.lab import crossover
from kvlib.lab.crossover import CrossoverPanel, presets_shown, sheets_shown
from kvlib.lab.crossover_picture import BATCHES, CONTEXTS
from kvlib.lab.crossover_step import PARTS, Case, Machine, lines_title, sentence
from kvlib.memory import DEVICES, MODELS
from kvlib.timing import Timing

H100 = DEVICES["H100 SXM"]
SHEET = Machine("H100 SXM", H100.bandwidth, H100.flops, H100.memory_bytes, measured=False)


@pytest.fixture(autouse=True)
def paper_step(paper, monkeypatch):
    monkeypatch.setattr(crossover, "DecodeStep", paper)


@pytest.fixture
def panel():
    return CrossoverPanel("Llama 3.1 8B", "H100 SXM", context=8192, batch=16)


def said(panel):
    return panel.status.value


def case_of(name, kv_heads, machine=SHEET, size=2):
    return Case(MODELS[name].with_kv_heads(kv_heads), size, machine)


# Arithmetic -------------------------------------------------------------------------------------


def test_the_floor_is_the_formula():
    floor = case_of("Llama 3.1 8B", 8).floor(8192, 16)
    weights = 2 * (8_030_261_248 - 128256 * 4096)  # the input embedding is not read whole
    assert floor.weights_s == pytest.approx(weights / 3350e9, rel=1e-12)
    assert floor.cache_s == pytest.approx(16 * 8192 * 131_072 / 3350e9, rel=1e-12)
    assert floor.bound_by == "bytes" and floor.seconds == floor.weights_s + floor.cache_s


@pytest.mark.parametrize(("name", "heads"), [("Llama 3.1 8B", 8), ("Llama 3.1 8B", 1), ("SmolLM2 135M", 9)])
@pytest.mark.parametrize("context", [128, 1024, 131072])
def test_the_crossovers_are_where_the_dominant_part_changes(name, heads, context):
    case = case_of(name, heads)
    cache, arithmetic = case.cache_batch(context), case.arithmetic_batch(context)
    one = case.floor(context, 1)
    assert one.cache_s * cache == pytest.approx(one.weights_s)
    if arithmetic is not None:
        assert one.compute_s * arithmetic == pytest.approx(one.weights_s + one.cache_s * arithmetic)
        assert case.dominant(context, int(arithmetic) + 1) == "arithmetic"
        if arithmetic > 1:
            assert case.dominant(context, int(np.ceil(arithmetic)) - 1) != "arithmetic"
    if arithmetic is None or cache < arithmetic - 1:
        assert case.dominant(context, int(cache) + 1) == "cache"
        if cache > 1:
            assert case.dominant(context, int(np.ceil(cache)) - 1 or 1) == "weights"


def test_batching_amortises_weights_and_never_the_cache():
    case = case_of("Llama 3.1 8B", 8)
    one, many = case.floor(1024, 1), case.floor(1024, 64)
    assert many.weights_s == one.weights_s
    assert many.cache_s == pytest.approx(64 * one.cache_s)


def test_weights_turn_to_arithmetic_at_the_known_batches():
    found = {}
    for name in ("A100 80GB", "H100 SXM"):
        sheet = DEVICES[name]
        machine = Machine(name, sheet.bandwidth, sheet.flops, sheet.memory_bytes, False)
        found[name] = round(Case(MODELS["Llama 3.1 8B"], 2, machine).weights_batch())
    assert found == {"A100 80GB": 153, "H100 SXM": 295}


def test_the_map_agrees_with_the_floor_at_every_point():
    case = case_of("Llama 3.1 8B", 1)
    grid = case.dominants(CONTEXTS, BATCHES)
    assert set(np.unique(grid)) == {0, 1, 2}
    for (i, context), (j, batch) in itertools.product(enumerate(CONTEXTS), enumerate(BATCHES)):
        assert PARTS[grid[i, j]] == case.dominant(context, batch)


def test_many_query_heads_on_one_kv_head_meet_arithmetic_where_it_is_slow():
    slow = Machine("a CPU", 13e9, 290e9, 16 * 10**9, measured=True)
    case = case_of("Falcon 7B", 1, slow, size=4)
    assert case.dominant(131072, 64) == "arithmetic"
    assert case_of("Falcon 7B", 1).arithmetic_batch(131072) is None  # a GPU never


# The panel --------------------------------------------------------------------------------------


def test_opens_with_the_numbers_their_source_and_the_classes(panel, paper):
    assert {"kvlib-panel", "kvlib-crossover"} <= set(panel._dom_classes)
    assert "kvlib-lab" not in panel._dom_classes
    assert "rates of H100 SXM (3.35 TB/s and 989 TFLOP/s, dense), not measured" in said(panel)
    assert "at least 9.61 ms: 4.48 ms to read the weights and 5.13 ms to read the cache" in said(panel)
    assert "The cache dominates" in said(panel) and "over from the weights at batch 14" in said(panel)
    assert "turn compute-bound near batch 295" in said(panel)
    assert panel.picture.map_title.get_text() == "This step waits for its cache"
    assert bytes(panel.image.value).startswith(b"\x89PNG")
    assert paper.ran == []


def test_the_picture_holds_the_lines_of_the_sentence(panel):
    floor = panel.case().floor(8192, 16)
    curves, at = panel.picture.curves, BATCHES.index(16)
    assert curves["weights"].get_ydata()[at] == floor.weights_s
    assert curves["cache"].get_ydata()[at] == floor.cache_s
    assert curves["arithmetic"].get_ydata()[at] == floor.compute_s
    assert curves["floor"].get_ydata()[at] == floor.seconds
    assert list(panel.picture.here.get_xdata()) == [16]
    assert list(panel.picture.here.get_ydata()) == [8192]
    assert len(panel.picture.measured.get_xdata()) == 0


def test_a_data_sheet_never_says_measured_and_is_not_run(panel, paper):
    assert panel.button.disabled
    panel.measure()
    assert paper.ran == [] and "is not here" in said(panel)
    assert "measured" not in said(panel).replace("not measured", "").replace("Not measured", "")
    assert "published rates" in panel.picture.lines_note.get_text()


def test_this_machine_is_measured_and_says_so(panel, paper):
    panel.device.value = "cpu"
    panel.shape.value = "SmolLM2 135M"
    assert panel.dtype.value == "float32" and not panel.button.disabled
    panel.context.value, panel.batch.value = 1024, 4
    assert "at the rates measured on" in said(panel) and "(30 GB/s and 300 GFLOP/s)" in said(panel)
    panel.button.click()
    assert paper.ran == [("SmolLM2 135M", 3, 1024, 4)]
    assert "Measured on paper" in said(panel)
    assert list(panel.picture.measured.get_xdata()) == [4]
    panel.batch.value = 8
    assert "Measured" not in said(panel) and len(panel.picture.measured.get_xdata()) == 0
    panel.batch.value = 4
    assert "Measured on paper" in said(panel)


def test_what_does_not_fit_or_takes_long_is_said_and_not_run(paper, monkeypatch):
    panel = CrossoverPanel("SmolLM2 135M", "cpu", batch=1024, context=131072)
    assert "It would need" in said(panel) and "does not fit" in said(panel)
    panel.measure()
    assert "Not measured: it would need" in said(panel)
    monkeypatch.setattr(paper, "limit", 10**18)
    panel.measure()
    assert "the step would take" in said(panel)
    panel.shape.value = "Gemma 2 9B"
    panel.measure()
    assert "sliding window" in said(panel) and paper.ran == []


def test_every_extreme_of_every_control(panel):
    ends = list(itertools.product((BATCHES[0], BATCHES[-1]), (CONTEXTS[0], CONTEXTS[-1])))
    devices = ["cpu", "A100 40GB", "B200"]
    turn = itertools.cycle(itertools.product(devices, ends))
    for name in panel.shape.options:
        panel.shape.value = name
        for heads in {panel.heads.options[0][1], panel.heads.options[-1][1]}:
            panel.heads.value = heads
            device, (batch, context) = next(turn)
            panel.device.value, panel.batch.value, panel.context.value = device, batch, context
            assert "Error" not in said(panel) and "at least" in said(panel), (name, heads)
            assert f"{context:,} tokens" in said(panel)
            low, high = panel.picture.lines.get_ylim()
            x, y = (float(v[0]) for v in panel.picture.chosen.get_data())
            assert low <= y <= high and x == batch
            marks = panel.picture.gutter
            heights = sorted(text.get_position()[1] * 430 for text, _ in marks)
            assert min(np.diff(heights)) > 16


def test_a_new_shape_offers_its_own_heads(panel):
    panel.heads.value = 1
    panel.shape.value = "SmolLM2 135M"
    assert [n for _, n in panel.heads.options] == [9, 3, 1] and panel.heads.value == 3
    assert panel.heads.options[1][0] == "3 (GQA, as trained)"


def test_a_failure_is_said_and_the_panel_goes_on(panel, paper, monkeypatch):
    panel.device.value, panel.shape.value = "cpu", "SmolLM2 135M"
    panel.batch.value, panel.context.value = 1, 128
    monkeypatch.setattr(paper, "fail_at", 1)
    panel.button.click()
    assert "Not measured: RuntimeError: CUDA error" in said(panel) and "more lines" not in said(panel)
    panel.batch.value = 2
    assert "at least" in said(panel)


def test_a_measurement_that_fails_in_a_cell_is_said_and_raises_nothing(panel, paper, monkeypatch):
    panel.device.value, panel.shape.value = "cpu", "SmolLM2 135M"
    panel.batch.value, panel.context.value = 1, 128
    monkeypatch.setattr(paper, "fail_at", 1)
    assert panel.measure() is panel
    assert "Not measured: RuntimeError: CUDA error" in said(panel) and "Measuring" not in said(panel)
    assert "at least" in said(panel)
    panel.measure()
    assert "Measured on paper" in said(panel)


def test_an_interrupted_measurement_is_said_and_interrupts_the_cell(panel, paper, monkeypatch):
    def interrupt(number):
        raise KeyboardInterrupt

    panel.device.value, panel.shape.value = "cpu", "SmolLM2 135M"
    panel.batch.value, panel.context.value = 1, 128
    monkeypatch.setattr(paper, "on_run", staticmethod(interrupt))
    with pytest.raises(KeyboardInterrupt):
        panel.measure()
    assert "Not measured: it was interrupted." in said(panel) and "Measuring" not in said(panel)


def test_a_panel_whose_rates_fail_at_opening_is_shown_and_recovers(monkeypatch):
    def fail(device):
        raise RuntimeError("no rates here")

    rates = crossover.timing.read_bandwidth
    monkeypatch.setattr(crossover.timing, "read_bandwidth", fail)
    panel = CrossoverPanel(device="cpu")
    assert "no rates here" in said(panel) and bytes(panel.image.value).startswith(b"\x89PNG")
    bundle = panel._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == panel.summary() and "<img" in data["text/html"]
    assert panel.measure() is panel and "no rates here" in said(panel)
    monkeypatch.setattr(crossover.timing, "read_bandwidth", rates)
    panel.batch.value = 2
    assert "at least" in said(panel) and panel.picture.map_title.get_text()


def test_the_text_and_the_picture_in_a_saved_notebook(panel):
    bundle = panel._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == panel.summary() == CrossoverPanel().summary()
    assert "<img" in data["text/html"]


def test_only_what_the_arithmetic_knows_is_offered():
    assert "Mixtral 8x7B" not in presets_shown() and "DeepSeek V3" not in presets_shown()
    assert "T4" not in sheets_shown() and "H100 SXM" in sheets_shown()
    for wrong in ({"preset": "T5"}, {"batch": 3}, {"context": 7}, {"kv_heads": 2}, {"dtype": "int4"}):
        with pytest.raises(ValueError, match="is not one of"):
            CrossoverPanel(**{"device": "cpu", **wrong})
    with pytest.raises(ValueError):
        CrossoverPanel(device="T4")


@pytest.mark.parametrize(("rates", "words"), [
    ((1e12, 1e6), "Arithmetic takes longest at every batch"),
    ((1e6, 1e30), "The cache takes over at batch 23"),
])  # fmt: skip
def test_the_title_at_the_ends(rates, words):
    machine = Machine("x", *rates, 10**9, True)
    assert lines_title(Case(MODELS["SmolLM2 135M"], 4, machine), 512).startswith(words[:24])


@pytest.mark.parametrize("kv_heads", [8, 1])
def test_a_region_at_the_right_end_is_named_beside_the_map(kv_heads):
    picture = CrossoverPanel("Llama 3.1 8B", "H100 SXM", kv_heads=kv_heads).picture
    arithmetic = picture.regions[2]
    assert arithmetic.get_text() == "arithmetic" and arithmetic.get_rotation() == 90
    assert arithmetic.get_position()[0] > picture.map.get_xlim()[1]


def test_a_step_below_its_floor_gets_a_sentence():
    case = case_of("SmolLM2 135M", 3, Machine("x", 30e9, 300e9, 10**12, True), size=4)
    floor = case.floor(1024, 1).seconds
    assert "below the floor" in sentence(case, 1024, 1, Timing.of([0.8 * floor], "x"))
    assert "below the floor" not in sentence(case, 1024, 1, Timing.of([1.2 * floor], "x"))


@pytest.mark.parametrize("note", ["This machine is busy.", None])
def test_a_step_far_above_its_floor_is_called_busy_only_where_that_was_measured(paper, monkeypatch, note):
    asked = []
    monkeypatch.setattr(crossover.timing, "busy_note", lambda: asked.append(1) or note)
    monkeypatch.setattr(crossover, "FAR", 1e9)
    panel = CrossoverPanel("SmolLM2 135M", "cpu")
    assert "busy" not in said(panel.measure()) and not asked
    monkeypatch.setattr(crossover, "FAR", 0)
    assert ("busy" in said(panel.measure())) == (note is not None) and asked
