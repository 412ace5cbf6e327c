"""The panel of smaller caches at every extreme, without a browser, on a small random model."""

import asyncio

import numpy as np
import pytest
import torch

from kvlib.caches import KVCache
from kvlib.lab import smaller
from kvlib.lab.smaller import BITS, SINKS, WINDOWS, SmallerPanel
from kvlib.lab.smaller_run import FULL, QUANTISED, WINDOW, Choice, bytes_held, reading, smoothed
from kvlib.perplexity import Perplexity, perplexity
from kvlib.teach.course_model import random_model

LENGTH = 150


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 257, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture
def panel(model, tokens):
    return SmallerPanel(model, tokens, chunk_size=40)


def status(panel):
    return panel.status.value


def choose(panel, choice):
    panel.kind.value = choice.kind
    if choice.bits:
        panel.bits.value = choice.bits
    if choice.window:
        panel.window.value, panel.sinks.value = choice.window, choice.sinks


def test_opens_with_bytes_and_nothing_measured(panel):
    assert {"kvlib-panel", "kvlib-smaller"} <= set(panel._dom_classes)
    assert "press Measure" in status(panel)
    assert panel.choice() == Choice() and panel.bits.disabled and panel.window.disabled
    held = 4 * 2 * 3 * 16 * (LENGTH - 1) * 4  # layers, K and V, heads, numbers, tokens, bytes
    assert bytes_held(panel.model, LENGTH - 1, Choice(), 40) == held
    assert bytes(panel.image.value).startswith(b"\x89PNG")


def test_measures_what_is_chosen_and_the_full_cache_beside_it(panel, model, tokens):
    choose(panel, Choice(WINDOW, window=64, sinks=1))
    panel.measure_button.click()
    assert set(panel.found) == {Choice(), panel.choice()} and "Error" not in status(panel)
    whole = model(torch.tensor([tokens[:-1]]))[0].log_softmax(-1)
    nll = -whole[range(LENGTH - 1), tokens[1:]]
    assert panel.found[Choice()].nll == pytest.approx(nll.numpy(), abs=1e-4)
    assert panel.found[Choice()].value == pytest.approx(nll.mean().exp().item(), rel=1e-4)
    assert f"{panel.found[panel.choice()].value:.2f}" in status(panel)
    assert panel.stop_button.disabled and panel.progress.layout.visibility == "hidden"
    x, y = panel.picture.chosen.get_data()
    mine = panel.found[panel.choice()]
    assert (list(x), list(y)) == ([mine.cache_bytes / 1e6], [mine.value])
    curve = panel.picture.line.get_ydata()
    assert len(curve) == LENGTH - 1 and np.abs(curve[:64]).max() < 1e-4  # nothing has left yet
    assert np.abs(curve[64:]).max() > 1e-3
    assert list(panel.picture.leaves.get_xdata()) == [64, 64]
    panel.measure_button.click()
    assert "measured already" in status(panel)


EVERY = [
    Choice(),
    *(Choice(QUANTISED, bits=b) for b in BITS),
    *(Choice(WINDOW, window=w, sinks=s) for w in (WINDOWS[0], WINDOWS[-1]) for s in (SINKS[0], SINKS[-1])),
]


@pytest.mark.parametrize("choice", EVERY, ids=Choice.name)
def test_bytes_said_before_are_the_bytes_found(panel, choice):
    choose(panel, choice)
    assert panel.choice() == choice and "Error" not in status(panel)
    before = panel._held(choice)
    share = f"{before / panel._held(Choice()):.0%} of the bytes of the full cache"
    assert choice == Choice() or share in status(panel)
    assert panel.measure(choice).cache_bytes == before
    panel._show()
    assert panel.picture.title.get_text() and "not measured" not in status(panel)


def test_every_setting_is_drawn_with_everything_measured(panel):
    length = LENGTH - 1
    generator = torch.Generator().manual_seed(0)
    every = [Choice(WINDOW, window=w, sinks=s) for w in WINDOWS for s in SINKS] + EVERY
    for i, choice in enumerate(every):
        nll = torch.rand(length, generator=generator) * (1 + 3 * i)
        panel.found[choice] = Perplexity(nll, panel._held(choice), length)
    for choice in every:
        choose(panel, choice)
        assert "Error" not in status(panel)
        figure = panel.picture.figure
        width, height = figure.canvas.get_width_height()
        texts = [*figure.texts, *panel.picture.left.texts, *panel.picture.right.texts]
        for box in [t.get_window_extent() for t in texts if t.get_text()]:
            assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height, choice


def test_labels_keep_off_points_and_each_other(panel):
    length, losses = LENGTH - 1, {32: (45, 19), 64: (33, 16), 128: (21, 14.5), 256: (15.5, 13.5)}
    every = {Choice(): 13.2, Choice(QUANTISED, bits=8): 13.2, Choice(QUANTISED, bits=4): 13.3}
    for window, (alone, kept) in losses.items():  # as SmolLM2 gives them, near each other
        for sinks in SINKS:
            value = kept * (1 + 0.03 / sinks) if sinks else alone
            every[Choice(WINDOW, window=window, sinks=sinks)] = value
    for choice, value in every.items():
        nll = torch.full((length,), value).log()
        panel.found[choice] = Perplexity(nll, panel._held(choice), length)
    picture = panel.picture
    for choice in every:
        choose(panel, choice)
        panel._show()
        at = picture.left.transData.transform
        points = [at((f.cache_bytes / 1e6, f.value)) for f in panel.found.values()]
        labels = [picture.chosen_name, picture.held_name, *picture.labels]
        boxes = {t.get_text(): t.get_window_extent() for t in labels if t.get_text()}
        assert choice.name() in boxes and len(boxes) > 6
        for text, box in boxes.items():
            gaps = sorted(max(abs(p - box.x0 - box.width / 2) - box.width / 2,
                              abs(q - box.y0 - box.height / 2) - box.height / 2) for p, q in points)
            assert gaps[0] >= 7 and gaps[1] >= 13, (choice, text)  # pixels, to its own point and any other
            over = [other for other, b in boxes.items() if other != text and box.overlaps(b)]
            assert not over, (choice, text, over)


def test_a_choice_that_is_not_measured_is_named_at_its_line_alone(panel):
    for sinks in (0, 16):
        choice = Choice(WINDOW, window=128, sinks=sinks)
        choose(panel, choice)
        assert panel.picture.chosen_name.get_text() == ""
        assert panel.picture.held_name.get_text().strip() == f"bytes held by {choice.name()}"
    panel.measure(choice)
    panel._show()
    assert panel.picture.chosen_name.get_text() == choice.name()


def test_a_click_reads_in_the_background_and_stop_ends_it(panel):
    async def use():
        panel.kind.value = QUANTISED
        panel.measure_button.click()
        assert panel.found == {}
        await asyncio.sleep(smaller.PAUSE_S)
        while panel.stop_button.disabled:
            await asyncio.sleep(0)
        assert "Reading the text with full cache" in status(panel)
        panel.stop_button.click()
        assert "Stopped." in status(panel)
        await panel._task

    asyncio.run(use())
    assert panel.found == {} and panel.stop_button.disabled and panel._wanted == []
    assert "Stopped." in status(panel) and panel.progress.layout.visibility == "hidden"

    async def again():
        panel.measure_button.click()
        panel.measure_button.click()
        await panel._task

    asyncio.run(again())
    assert set(panel.found) == {Choice(), Choice(QUANTISED, bits=8)}
    assert "Stopped." not in status(panel)
    panel.stop_button.click()  # nothing is read now
    assert "Stopped." not in status(panel)


def gives(bad, wrong):
    """Return a `reading` that finds the loss `wrong` with the cache `bad`, and 1 with any other."""

    def read(model, tokens, cache, chunk_size):
        yield 0.5
        nll = torch.ones(LENGTH - 1)
        if cache.__self__ == bad:
            nll[7] = wrong
        yield Perplexity(nll, 1000, LENGTH - 1)

    return read


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1e6])
@pytest.mark.parametrize("bad", [Choice(), Choice(QUANTISED, bits=4)], ids=Choice.name)
def test_a_perplexity_that_is_no_number_is_said_and_dropped(panel, monkeypatch, bad, wrong):
    monkeypatch.setattr(smaller, "reading", gives(bad, wrong))
    choose(panel, Choice(QUANTISED, bits=4))
    panel.measure_button.click()
    assert "Error" not in status(panel) and f"The perplexity with {bad.name()} is" in status(panel)
    assert bad not in panel.found and len(panel.found) == 1
    panel.kind.value = WINDOW
    panel.measure_button.click()
    assert "Error" not in status(panel) and panel.choice() in panel.found
    with pytest.raises(ValueError, match="perplexity with .* dropped"):
        panel.measure(bad)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_was_found_before_is_dropped_if_it_is_no_number(model, tokens, wrong):
    bad = Perplexity(torch.full((LENGTH - 1,), wrong), 1000, LENGTH - 1)
    good = Perplexity(torch.ones(LENGTH - 1), 1000, LENGTH - 1)
    panel = SmallerPanel(model, tokens, found={Choice(): good, Choice(QUANTISED, bits=4): bad})
    assert "Error" not in status(panel) and "The perplexity with int4 is" in status(panel)
    assert set(panel.found) == {Choice()}
    panel.kind.value = QUANTISED
    assert "Error" not in status(panel) and "dropped" not in status(panel)


def test_what_was_found_before_is_not_read_again(model, tokens, monkeypatch):
    found = {Choice(): Perplexity(torch.ones(LENGTH - 1), 1000, LENGTH - 1)}
    panel = SmallerPanel(model, tokens, found=found)
    assert "Perplexity 2.72" in status(panel)
    monkeypatch.setattr(smaller, "reading", lambda *_: pytest.fail("read again"))
    assert panel.measure(Choice()) is found[Choice()]


def test_a_failure_lands_in_the_status(panel, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory left")
        yield

    monkeypatch.setattr(smaller, "reading", fail)
    panel.measure_button.click()
    assert "no memory left" in status(panel) and panel.stop_button.disabled

    async def use():
        panel.measure_button.click()
        await panel._task

    asyncio.run(use())
    assert "no memory left" in status(panel) and panel._wanted == []
    monkeypatch.setattr(panel.picture, "update", lambda *_: 1 / 0)
    panel.kind.value = WINDOW
    assert "ZeroDivisionError" in status(panel)


def test_the_saved_text_is_the_same_on_every_run(panel):
    first = panel._repr_mimebundle_()["text/plain"]
    panel.kind.value = QUANTISED
    panel.measure_button.click()
    saved = panel._repr_mimebundle_()
    assert saved["text/plain"] == first and "<img" in saved["text/html"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": [1]}, "at least 2"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"chunk_size": 2.0}, "chunk_size"),
        ({"choice": Choice(WINDOW, window=100, sinks=0)}, "buttons for window 32, 64, 128, 256, not for 100"),
        ({"choice": Choice(WINDOW, window=64, sinks=3)}, "buttons for sinks 0, 1, 4, 16, not for 3"),
        ({"choice": Choice(QUANTISED, bits=2)}, "buttons for bits 8, 4, not for 2"),
        ({"choice": Choice("paged")}, "one of the kinds full, quantised, window"),
        ({"choice": "window"}, "choice is a Choice"),
    ],
)
def test_what_cannot_be_read_is_refused(model, tokens, options, words):
    with pytest.raises(ValueError, match=words):
        SmallerPanel(model, **{"tokens": tokens, **options})


def test_reading_ends_with_what_was_found(model):
    steps = list(reading(model, range(10), KVCache, 4))
    assert steps[:3] == [4 / 9, 8 / 9, 1.0] and len(steps) == 4
    want = perplexity(model, list(range(10)), cache=KVCache, chunk_size=4)
    assert torch.equal(steps[3].nll, want.nll)
    assert (steps[3].cache_bytes, steps[3].cached_tokens) == (want.cache_bytes, want.cached_tokens)


def test_smoothing_takes_the_mean_of_the_last():
    assert smoothed(torch.tensor([1.0, 3, 5, 7]), 2).tolist() == [1, 2, 4, 6]


def test_names():
    assert Choice().name() == "full cache" and Choice(QUANTISED, bits=4).name() == "int4"
    assert Choice(WINDOW, window=64, sinks=1).name() == "window 64 + 1 sink"
    assert Choice(WINDOW, window=64, sinks=0).family == WINDOW and Choice(FULL).family == FULL
