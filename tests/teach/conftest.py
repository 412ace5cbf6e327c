"""Every test here has a home of its own: none meets a learner's progress, or another test's."""

import pytest

from kvlib.teach import store


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("KVLIB_HOME", str(folder))
    monkeypatch.setattr(store, "_files", {})
    monkeypatch.setattr(store, "LOCK_PATIENCE_S", 0.05)
    return folder
