"""What the tests of every panel that steps ask alike."""


def saved_form(panel) -> dict:
    """Return what a notebook keeps of the panel; it must be the same each time."""
    first, second = (panel._repr_mimebundle_() for _ in range(2))
    data = first[0] if isinstance(first, tuple) else first
    again = second[0] if isinstance(second, tuple) else second
    assert data["text/plain"] == again["text/plain"] and data["text/html"] == again["text/html"]
    return data


def shows_an_error_and_goes_on(panel, monkeypatch, then: str) -> None:
    """Let a picture fail at the next step; the one behind it must be shown again, with `then`."""

    def fail(*drawn):
        raise RuntimeError("no pixels")

    monkeypatch.setattr(panel.picture, "update", fail)
    panel.next.click()
    assert "RuntimeError: no pixels" in panel.status.value
    monkeypatch.undo()
    panel.next.click()
    assert then in panel.status.value
