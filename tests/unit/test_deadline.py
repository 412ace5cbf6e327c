"""A time limit ends what never looks at a clock, and leaves nothing behind."""

import signal
import threading
import time

import pytest

from kvlib import deadline
from kvlib.deadline import TimeUp, time_limit

SIGNALS = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signal")


def test_what_is_done_in_time_is_left_alone():
    before = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None
    with time_limit(60) as check:
        check()
    assert not hasattr(signal, "SIGALRM") or signal.getsignal(signal.SIGALRM) == before


@SIGNALS
@pytest.mark.parametrize("slow", [lambda: time.sleep(30), lambda: [None for _ in iter(int, 1)]])
def test_a_sleep_and_an_endless_loop_are_ended(slow):
    begun = time.perf_counter()
    with pytest.raises(TimeUp, match="longer than 0.05 s"), time_limit(0.05):
        slow()
    assert time.perf_counter() - begun < 20


@SIGNALS
def test_who_swallows_it_is_told_again():
    with pytest.raises(TimeUp), time_limit(0.05):
        try:
            time.sleep(30)
        except TimeUp:
            time.sleep(30)


def test_an_except_clause_for_exceptions_does_not_stop_it():
    assert not issubclass(TimeUp, Exception)


def test_without_the_signal_the_check_raises(monkeypatch):
    monkeypatch.setattr(deadline, "_can_signal", lambda: False)
    with pytest.raises(TimeUp), time_limit(0.02) as check:
        time.sleep(0.05)
        check()


def test_in_another_thread_it_works_by_checks():
    said = []

    def work():
        try:
            with time_limit(0.02) as check:
                time.sleep(0.05)
                check()
        except TimeUp as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert said == ["It took longer than 0.02 s."]


@SIGNALS
def test_somebody_elses_timer_goes_on_and_keeps_its_handler():
    rung = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        with time_limit(60):
            pass
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert 0 < left <= 500
        time.sleep(0.1)
        assert rung == [1]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_a_time(seconds):
    with pytest.raises(ValueError, match="above 0"), time_limit(seconds):
        pass
