"""The bar of a long cell: seen by a person, gone afterwards, and silent where nobody watches."""

import pytest

from kvlib.lab import progress_bar, waiting
from kvlib.lab.waiting import QUIET


class Shown(list):
    """Stand where IPython's display handle would, and keep what is shown."""

    def __call__(self, data, raw, display_id):
        assert raw and display_id
        self.append(data)
        return self

    def update(self, data, raw):
        assert raw
        self.append(data)


@pytest.fixture
def shown(monkeypatch):
    """Let a person watch every step."""
    kept = Shown()
    monkeypatch.setattr(waiting, "display", kept)
    monkeypatch.setattr(waiting, "REDRAW_S", 0)
    monkeypatch.delenv(QUIET, raising=False)
    return kept


def test_the_bar_counts_and_goes(shown):
    assert list(progress_bar(["a", "b"], "Reading <x>")) == ["a", "b"]
    words = [data.get("text/plain") for data in shown]
    assert words == ["Reading <x>: 0 of 2", "Reading <x>: 1 of 2", "Reading <x>: 2 of 2", None]
    assert 'max="2"' in shown[1]["text/html"] and "&lt;x&gt;" in shown[1]["text/html"]
    assert shown[-1] == {"text/html": ""}


def test_a_bar_of_nothing_is_well_formed_and_its_label_escaped(shown):
    assert list(progress_bar([], 'Reading "<x>"')) == []
    bar = '<progress aria-label="Reading &quot;&lt;x&gt;&quot;" value="0" max="1"></progress>'
    assert bar in shown[0]["text/html"]


def test_a_stream_of_unknown_length_shows_what_is_done(shown):
    assert list(progress_bar(iter("ab"), "Writing")) == ["a", "b"]
    assert shown[1]["text/plain"] == "Writing: 1" and "max=" not in shown[1]["text/html"]


@pytest.mark.parametrize("reason", [ValueError, KeyboardInterrupt])
def test_the_bar_goes_when_the_loop_breaks(shown, reason):
    def work():
        for _ in progress_bar(range(3), "Work"):
            raise reason

    with pytest.raises(reason):
        work()
    assert shown[-1] == {"text/html": ""}


def test_nothing_is_shown_where_nobody_watches(shown, monkeypatch):
    monkeypatch.setenv(QUIET, "1")
    assert list(progress_bar([1, 2], "Work")) == [1, 2]
    assert shown == []
