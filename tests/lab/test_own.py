"""The learner's attention on the lab's plot: measured when right, explained when not."""

import time

import pytest

from kvlib import grouped_attention
from kvlib.lab import LiveLab, own
from kvlib.lab.own import lay_over
from kvlib.steps import DoesNotFit
from kvlib.teach.exercises import define, find
from kvlib.timing import Timing


@pytest.fixture
def lab(monkeypatch, paper):
    """A lab whose steps take 2 s a run with any attention but kvlib's; `paper.with_own` lists them."""

    class Step(paper):
        def run(self, *shape, budget_s=0.5, attend=None):
            if attend is None:
                return super().run(*shape, budget_s=budget_s)
            if not self.fits(*shape):
                raise DoesNotFit("too large", 1, 1)
            paper.with_own.append(shape)
            return Timing.of((2.0,), "paper")

    monkeypatch.setattr(paper, "with_own", [], raising=False)
    monkeypatch.setattr(own, "DecodeStep", Step)
    return LiveLab(device="cpu", dtype="float32")


def attention(source):
    return define("my_attention", source)


def exercise_answers():
    it = find("05-grouped-attention")
    return {"stub": it.stub, "solution": it.solution, **it.wrong}


def drawn(lab):
    line = lab.picture.overlays[0]
    return dict(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_the_solution_is_measured_beside_kvlibs(lab, paper):
    said = lay_over(lab, attention(exercise_answers()["solution"]), contexts=(512, 2048))
    assert drawn(lab) == {512: 2.0, 2048: 2.0}
    assert paper.with_own == [(3, 512, 1), (3, 2048, 1)]
    assert paper.ran == [("SmolLM2 135M", 3, 512, 1), ("SmolLM2 135M", 3, 2048, 1)]
    assert said.startswith("At 512 tokens a step takes 2 s with yours and ")
    assert len(said.splitlines()) == 2 and "times as long" in said


def test_what_copies_is_right_and_so_it_is_measured(lab, paper):
    lay_over(lab, attention(exercise_answers()["repeats K and V"]), contexts=(512,))
    assert drawn(lab) == {512: 2.0}


def test_the_untouched_stub_leaves_kvlibs_alone_and_says_so(lab, paper):
    said = lay_over(lab, attention(exercise_answers()["stub"]), contexts=(512, 2048))
    assert said == "Your attention is still to be written. The lab shows kvlib's attention alone."
    assert drawn(lab) == {} and paper.with_own == []
    assert list(lab.picture.points["GQA"].get_xdata()) == [512, 2048]


RIGHT_NUMBERS = {
    "solution", "stub", "repeats K and V", "multiplies an expand", "copies K once",
    "group before KV",  # with 9 heads over 3, G equals KV
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(exercise_answers()) - RIGHT_NUMBERS))
def test_what_is_wrong_is_not_measured_and_the_reason_given(lab, paper, name):
    said = lay_over(lab, attention(exercise_answers()[name]), contexts=(512,))
    assert said.endswith("The lab shows kvlib's attention alone.")
    assert drawn(lab) == {} and paper.with_own == []


@pytest.mark.parametrize("answer", [None, 3, lambda: 0, lambda *a: 1 / 0, lambda q, k, v, m: None])
def test_nothing_that_is_passed_raises(lab, answer):
    assert "kvlib's attention alone" in lay_over(lab, answer, contexts=(512,))


def test_a_context_that_does_not_fit_is_said(lab, paper):
    said = lay_over(lab, grouped_attention, contexts=(512, 131072))
    assert drawn(lab) == {512: 2.0} and "At 131,072 tokens the step does not fit into memory here." in said


def test_a_failure_in_the_middle_keeps_what_was_measured(lab, monkeypatch):
    def fails_later(q, k, v, mask):
        return grouped_attention(q, k, v, mask)

    calls = []

    def run(self, *shape, budget_s=0.5, attend=None):
        calls.append(shape)
        if len(calls) == 2:
            raise RuntimeError("no such kernel")
        return Timing.of((2.0,), "paper")

    monkeypatch.setattr(own.DecodeStep, "run", run)
    said = lay_over(lab, fails_later, contexts=(512, 2048, 8192))
    assert drawn(lab) == {512: 2.0} and "At 2,048 tokens it raised RuntimeError: no such" in said


def test_a_real_step_of_a_small_shape(monkeypatch, tmp_path):
    from kvlib import steps
    from kvlib.memory import ModelPreset

    monkeypatch.setattr(steps, "_all_pools", {})
    tiny = ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True)
    lab = LiveLab(tiny, device="cpu", dtype="float32")
    said = lay_over(lab, attention(exercise_answers()["solution"]), contexts=(128,))
    assert drawn(lab)[128] > 0 and "with yours and" in said


def test_a_wrong_function_takes_the_older_ones_curve_away(lab):
    lay_over(lab, attention(exercise_answers()["solution"]), contexts=(512,))
    assert drawn(lab) == {512: 2.0}
    lay_over(lab, lambda q, k, v, mask: q * float("nan"), contexts=(512,))
    assert drawn(lab) == {}


def test_a_function_that_writes_into_its_inputs_is_judged_by_the_real_ones(lab, paper):
    def emptied(q, k, v, mask):
        v.zero_()
        return q * 0

    assert "other numbers" in lay_over(lab, emptied, contexts=(512,))
    assert paper.with_own == []


def right(q, k, v, mask):
    return grouped_attention(q, k, v, mask)


WRONG_SOMEWHERE = {
    "for 1 sequence of 1 token,": lambda q, k, v, m: right(q, k, v, m) + (k.shape[2] == 1),
    "for 1 sequence of 300 tokens,": lambda q, k, v, m: right(q, k[:, :, :256], v[:, :, :256], m),
    "for 2 sequences of 7 tokens,": lambda q, k, v, m: right(q[:1], k[:1], v[:1], m).expand_as(q),
    "for 2 sequences of 300 tokens,": lambda q, k, v, m: right(q, k, v, m) + (k.shape[0] * k.shape[2] == 600),
}


@pytest.mark.parametrize("where", WRONG_SOMEWHERE)
def test_what_is_wrong_at_some_lengths_or_batches_only_is_found(lab, paper, where):
    said = lay_over(lab, WRONG_SOMEWHERE[where], contexts=(512,))
    assert where in said and "other numbers" in said
    assert drawn(lab) == {} and paper.with_own == []


def test_an_attention_that_never_ends_is_ended_and_said(lab, paper, monkeypatch):
    monkeypatch.setattr(own, "CHECK_S", 0.2)
    begun = time.perf_counter()
    said = lay_over(lab, lambda *args: time.sleep(60), contexts=(512,))
    assert time.perf_counter() - begun < 30
    assert said.startswith("Your attention did not finish a few small examples in 0.2 s.")
    assert drawn(lab) == {} and paper.with_own == []


def test_an_attention_that_is_slow_at_length_is_ended_and_the_rest_kept(lab, paper, monkeypatch):
    from kvlib import steps
    from kvlib.memory import ModelPreset

    def slow(q, k, v, mask):
        if k.shape[2] > 1000:
            time.sleep(60)
        return right(q, k, v, mask)

    monkeypatch.setattr(steps, "_all_pools", {})
    monkeypatch.setattr(own, "DecodeStep", steps.DecodeStep)
    monkeypatch.setattr(own, "STEP_S", 5.0)
    lab = LiveLab(ModelPreset("Tiny", 2, 4, 2, 8, 32, 48, 96, True), device="cpu", dtype="float32")
    begun = time.perf_counter()
    said = lay_over(lab, slow, contexts=(128, 2048, 8192)).splitlines()
    assert time.perf_counter() - begun < 50
    assert list(drawn(lab)) == [128] and len(said) == 2
    assert "At 2,048 tokens a step with yours was not finished after 5 s" in said[1]
    assert "no further context" in said[1]
    lay_over(lab, right, contexts=(2048,))  # the lab and the pools go on
    assert list(drawn(lab)) == [2048]


def test_without_signals_the_clock_is_looked_at_between_the_calls(lab, paper, monkeypatch):
    from kvlib import deadline

    monkeypatch.setattr(deadline, "_can_signal", lambda: False)
    monkeypatch.setattr(own, "CHECK_S", 0.05)

    def slow(q, k, v, mask):
        time.sleep(0.1)
        return right(q, k, v, mask)

    assert "did not finish" in lay_over(lab, slow, contexts=(512,))
