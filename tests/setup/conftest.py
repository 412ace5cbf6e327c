"""course.py as a module, working in a folder of its own."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Return course.py as a module whose course lies in a temporary folder with no environment."""
    spec = importlib.util.spec_from_file_location("course", ROOT / "course.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / "course"
    (root / "tests").mkdir(parents=True)
    for name in ("requirements.txt", "tests/requirements.txt", "pyproject.toml"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "VENV", root / ".venv")
    monkeypatch.delenv("KVLIB_WHEELS", raising=False)
    return module
