"""The panel without a browser: controls, measuring, stopping, failing."""

import asyncio
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kvlib import timing
from kvlib.lab import LiveLab
from kvlib.lab.curves import BATCHES, CONTEXTS, grouped_choices
from kvlib.lab.style import KINDS
from kvlib.memory import MODELS, ModelPreset


@pytest.fixture
def lab():
    return LiveLab(device="cpu", dtype="float32")


def status(lab):
    return lab.status.value


def title(lab):
    return lab.picture.time.title.get_text()


def test_opens_with_arithmetic_and_the_classes(lab, paper):
    assert paper.ran == []
    assert {"kvlib-panel", "kvlib-lab"} <= set(lab._dom_classes)
    assert lab.controls.kind.options == ("MHA", "GQA", "MQA")
    assert "at least" in status(lab)
    assert "outgrows the weights at 11,676 tokens" in lab.picture.memory.title.get_text()
    assert bytes(lab.image.value).startswith(b"\x89PNG")


def test_a_toggle_draws_and_measures_its_own_point_only(lab, paper):
    lab.controls.kind.value = "MQA"
    assert paper.ran == [("SmolLM2 135M", 1, 8192, 1)]
    assert "MQA (1 KV head for 9 query heads)" in status(lab)
    assert "One decode step took" in status(lab)
    assert list(lab.picture.points["MQA"].get_xdata()) == [8192]
    assert title(lab).startswith("MQA: one step takes")
    lab.controls.kind.value = "MHA"
    lab.controls.kind.value = "MQA"
    assert len(paper.ran) == 2  # a measured point is not measured again


def test_measure_again_measures_the_selected_point_only(lab, paper):
    lab.sweep(contexts=(128, 8192), kinds=("GQA",))
    lab.controls.again.click()
    assert paper.ran[2:] == [("SmolLM2 135M", 3, 8192, 1)]
    lab.sweep(contexts=(128, 8192), kinds=("GQA",))
    assert len(paper.ran) == 3


@pytest.mark.parametrize("note", [None, "This machine is busy: other programs take 60%."])
@pytest.mark.parametrize("times_floor", [1.2, 11.0])
def test_a_busy_machine_is_named_only_where_it_was_measured(lab, paper, monkeypatch, note, times_floor):
    floor = lab.setting.floor(lab.measurer.rates_of(lab.setting)).seconds
    slow = timing.Timing.of([times_floor * floor], lab.setting.device)
    monkeypatch.setattr(paper, "run", lambda self, *shape, budget_s: slow)
    asked = []
    monkeypatch.setattr(timing, "busy_note", lambda: asked.append(1) or note)
    lab.controls.again.click()
    far = times_floor > 4
    assert asked == ([1] if far else [])
    assert ("Reading explains only a small part" in status(lab)) is far
    assert ("busy" in status(lab)) is (far and note is not None)


def test_the_sentence_names_the_models_own_kind_and_what_is_not_read(lab):
    lab.controls.model.value = "Llama 2 7B"
    assert "Llama 2 7B itself uses MHA; GQA with 4 KV heads is its shape with fewer KV heads." in status(lab)
    assert "without the input embedding" in status(lab)
    lab.controls.model.value = "Mixtral 8x7B"
    assert "only the active experts" in status(lab) and "Mixtral 8x7B itself" not in status(lab)


def test_points_of_other_settings_are_kept_apart_and_return(lab):
    lab.controls.kind.value = "MQA"
    lab.controls.batch.value = 2
    assert list(lab.picture.points["MQA"].get_xdata()) == [8192]  # of batch 2, just measured
    two = list(lab.picture.points["MQA"].get_ydata())
    lab.controls.batch.value = 1
    assert list(lab.picture.points["MQA"].get_ydata()) != two
    lab.controls.dtype.value = "bfloat16"
    lab.controls.kind.value = "GQA"
    assert len(lab.picture.points["MHA"].get_xdata()) == 0
    lab.controls.dtype.value = "float32"
    assert list(lab.picture.points["MQA"].get_xdata()) == [8192]


def test_gqa_offers_every_divisor_between_and_only_for_gqa(lab):
    lab.controls.model.value = "Llama 3.1 8B"
    assert [n for _, n in lab.controls.grouped.options] == [2, 4, 8, 16]
    assert lab.controls.grouped.value == 8 and not lab.controls.grouped.disabled
    lab.controls.kind.value = "MHA"
    assert lab.controls.grouped.disabled


def test_the_extremes_of_every_control_raise_nothing_and_allocate_nothing_too_large(lab, paper):
    controls = lab.controls
    ends = (CONTEXTS[0], CONTEXTS[-1])
    ends = itertools.cycle(itertools.product(controls.dtype.options, ends, KINDS))
    for name, batch in itertools.product(controls.presets, (BATCHES[0], BATCHES[-1])):
        controls.model.value, controls.batch.value = name, batch
        for dtype, context, kind in itertools.islice(ends, 2):
            controls.dtype.value, controls.context.value, controls.kind.value = dtype, context, kind
            assert "Error" not in status(lab), (name, dtype, kind)
    assert {name for name, *_ in paper.ran} <= {name for name in MODELS if "SmolLM2" in name}


def test_what_does_not_fit_is_said_and_its_floor_drawn(lab, paper):
    lab.controls.kind.value = "MHA"
    before = len(paper.ran)
    lab.controls.context.value = 131072
    assert len(paper.ran) == before
    assert "would need 18.7 GB" in status(lab) and "uses at most 2 GB" in status(lab)
    assert title(lab).startswith("MHA: one step cannot take less than")


def test_a_step_that_would_take_long_is_not_run(lab, paper, monkeypatch):
    monkeypatch.setattr(paper, "limit", 10**15)
    lab.controls.model.value = "Llama 3.1 405B"
    assert paper.ran == [] and "one step would take about" in status(lab)


def test_a_sweep_measures_what_fits(lab, paper):
    assert lab.sweep() is lab
    assert list(lab.picture.points["MQA"].get_xdata()) == [128, 512, 2048, 8192, 32768]
    assert list(lab.picture.points["MHA"].get_xdata()) == [128, 512, 2048, 8192]
    assert list(lab.picture.points["GQA"].get_xdata()) == [128, 512, 2048, 8192]
    assert len(paper.ran) == len(set(paper.ran)) == 13
    assert lab.controls.stop.disabled and lab.controls.progress.layout.visibility == "hidden"


def test_a_failure_in_the_middle_of_a_sweep_is_said_and_the_rest_measured(lab, paper, monkeypatch):
    monkeypatch.setattr(paper, "fail_at", 3)
    lab.controls.context.value = 128
    lab.controls.kind.value = "MQA"
    lab.sweep()
    assert len(lab.measurer.points) == len(paper.ran) - 1
    (failed,) = lab.measurer.failed
    lab.controls.context.value = failed.context
    lab.controls.kind.value = KINDS[(9, 3, 1).index(failed.kv_heads)]
    assert failed in lab.measurer.points  # selecting it tried again


def test_the_failure_of_the_selected_point_lands_in_the_status(lab, paper, monkeypatch):
    monkeypatch.setattr(paper, "fail_at", 1)
    lab.controls.kind.value = "MQA"
    assert "Not measured: CUDA error: an illegal memory access" in status(lab)
    assert "more lines" not in status(lab)
    lab.controls.kind.value = "MHA"
    assert "One decode step took" in status(lab)


def test_a_drawing_that_fails_lands_in_the_status(lab, monkeypatch):
    monkeypatch.setattr(lab.picture, "update", lambda view: 1 / 0)
    lab.controls.kind.value = "MQA"
    assert "ZeroDivisionError" in status(lab)
    monkeypatch.undo()


def test_stop_in_the_middle_of_a_sweep(lab, paper, monkeypatch):
    async def run():
        stopped = asyncio.Event()

        def stop():
            lab.controls.stop.click()
            stopped.set()

        def on_run(number):
            if number == 4:
                asyncio.get_running_loop().call_soon(stop)

        monkeypatch.setattr(paper, "on_run", staticmethod(on_run))
        lab.controls.sweep.click()
        assert not lab.controls.stop.disabled and lab.controls.progress.max == 18
        await asyncio.wait_for(stopped.wait(), 20)
        await asyncio.wait_for(lab._task, 20)

    asyncio.run(run())
    assert len(paper.ran) == 4 and lab.controls.stop.disabled
    assert len(lab.measurer.points) == 4


def test_toggles_get_through_during_a_sweep(lab, paper, monkeypatch):
    async def run():
        def on_run(number):
            if number == 2:
                asyncio.get_running_loop().call_soon(setattr, lab.controls.kind, "value", "MQA")

        monkeypatch.setattr(paper, "on_run", staticmethod(on_run))
        lab.controls.sweep.click()
        await asyncio.wait_for(lab._task, 30)

    asyncio.run(run())
    assert paper.ran.index(("SmolLM2 135M", 1, 8192, 1)) == 2  # at once, before the sweep went on
    assert lab.setting.kind == "MQA" and len(lab.measurer.points) >= 13


def test_rapid_toggles_measure_the_last_only(lab, paper):
    async def run():
        for kind in ("MHA", "MQA", "GQA", "MQA", "MHA") * 3:
            lab.controls.kind.value = kind
        lab.controls.context.value = 512
        await asyncio.wait_for(lab._task, 20)

    asyncio.run(run())
    assert paper.ran == [("SmolLM2 135M", 9, 512, 1)]


def test_another_shape_ends_a_sweep(lab, paper):
    async def run():
        lab.controls.context.value = 512
        lab.controls.sweep.click()
        lab.controls.batch.value = 4
        await asyncio.wait_for(lab._task, 20)

    asyncio.run(run())
    assert {batch for *_, batch in paper.ran} == {4}


def test_the_guess_is_shown_beside_the_truth():
    guess = SimpleNamespace(value=20)
    lab = LiveLab(device="cpu", dtype="float32", kind="MQA", context=2048, guess=guess)
    assert list(lab.picture.guess.get_ydata()) == [0.02]
    lab.sweep(contexts=[2048], kinds=["MQA"])
    assert "Your guess of 20 ms is" in status(lab)
    assert lab.picture.truth_label.get_text().startswith("MQA measured")
    assert LiveLab(guess=SimpleNamespace(value=None)).picture.guess.get_ydata() == []


def test_a_guess_is_what_predict_returns():
    with pytest.raises(ValueError, match="predict"):
        LiveLab(device="cpu", guess=3)


def test_without_measuring_the_floors_are_drawn(paper):
    lab = LiveLab(device="cpu", measure=False)
    lab.controls.kind.value = "MQA"
    lab.controls.dtype.value = "float16"
    assert paper.ran == [] and lab.controls.sweep.disabled
    assert len(lab.picture.time.curves["MQA"].get_ydata()) == len(CONTEXTS)


def test_what_a_notebook_keeps_is_the_same_on_every_run(lab):
    first = lab.summary()
    lab.sweep(contexts=[128])
    data = lab._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data
    assert data["text/plain"] == first
    assert "in float32: MHA 138,240, GQA 46,080, MQA 15,360" in first
    assert len(data["text/html"]) < 41_000
    assert "application/vnd.jupyter.widget-view+json" in data


def test_an_overlay_is_drawn_and_replaced(lab):
    lab.overlay("yours", {128: 0.1, 512: 0.2})
    lab.overlay("yours", {128: 0.3})
    assert list(lab.picture.overlays[0].get_ydata()) == [0.3]


@pytest.mark.parametrize(
    "curve",
    [("x", {"a": 1.0}), ("x", {128: float("nan")}), ("x", {128: 0.0}), ("x", {128: None}),
     ("x", {0: 1.0}), ("x", {True: 1.0}), ("x", None), (3, {128: 1.0}), ("x", {128: 1.0}, "nocolor")],
)  # fmt: skip
def test_what_is_no_curve_is_refused_and_the_panel_goes_on(lab, curve):
    with pytest.raises(ValueError, match="curve|colour"):
        lab.overlay(*curve)
    lab.overlay("good", {128: 0.1})
    assert list(lab.picture.overlays[0].get_ydata()) == [0.1] and "Error" not in status(lab)


@pytest.mark.parametrize(
    "wrong", [([0],), ([1.5],), ([200000],), (["a"],), (3,), ([128], ["MLA"]), ([128], "MHA")]
)
def test_a_sweep_of_what_the_panel_does_not_have_is_refused(lab, paper, wrong):
    with pytest.raises(ValueError, match="not one of|must be a list"):
        lab.sweep(*wrong)
    assert paper.ran == [] and lab.controls.stop.disabled


def test_an_interrupted_sweep_is_a_stopped_one(lab, paper, monkeypatch):
    def interrupt(number):
        if number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(paper, "on_run", staticmethod(interrupt))
    with pytest.raises(KeyboardInterrupt):
        lab.sweep(contexts=(128, 512, 2048), kinds=("MHA",))
    assert len(lab.measurer.points) == 1 and lab.measurer.total == 0
    assert lab.controls.stop.disabled and lab.controls.progress.layout.visibility == "hidden"
    lab.controls.kind.value = "MQA"
    assert len(paper.ran) == 3  # its own point, and nothing of the old sweep


def test_a_shape_of_ones_own():
    own = ModelPreset("mine", 2, 8, 2, 16, 128, 256, 1000)
    lab = LiveLab(own, device="cpu")
    assert lab.controls.model.value == "mine" and lab.controls.grouped.value == 2


@pytest.mark.parametrize(
    "wrong",
    [{"preset": "nope"}, {"device": "cuda:77"}, {"dtype": "int8"}, {"kind": "MLA"},
     {"context": 1000}, {"batch": 3}, {"preset": "Falcon 7B"}, {"preset": "DeepSeek V3"},
     {"preset": ["SmolLM2 135M"]},
     {"preset": MODELS["DeepSeek V3"]}, {"preset": MODELS["Falcon 7B"]}],
)  # fmt: skip
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=r"is not|no device|no choice"):
        LiveLab(**wrong)


def test_pyplot_is_never_imported():
    code = (
        "import sys; from kvlib.lab.picture import LabPicture; import kvlib.lab; LabPicture(); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code]).returncode == 0


def test_every_shape_in_the_list_can_be_grouped(lab):
    assert all(grouped_choices(preset) for preset in lab.controls.presets.values())
