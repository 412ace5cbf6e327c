"""What the README says about recordings is what lies among the assets."""

import re
from pathlib import Path

from kvlib.record import _parser
from kvlib.recording import recorded_folder
from kvlib.recording_file import find

ROOT = Path(__file__).resolve().parents[2]
README = " ".join((ROOT / "README.md").read_text("utf-8").split())


def test_every_file_there_is_a_whole_recording():
    assert recorded_folder() == ROOT / "assets" / "recorded"
    found, problems = find(recorded_folder())
    assert problems == [] and not any(it.partial for it in found)


def test_the_readme_says_whether_one_ships():
    found, _ = find(recorded_folder())
    assert ("None ships with the course yet" in README) == (not found)
    for it in found:
        assert it.device in README, f"name {it.device} and its day, {it.date}, in the README"


def test_the_readmes_command_is_one():
    (command,) = re.findall(r"`python -m kvlib\.record (.+?)`", README)
    words = [quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|(\S+)', command)]
    options = _parser().parse_args(words)
    assert (options.device, options.dtype, options.model) == ("cuda", "bfloat16", ["Llama 3.1 8B"])
    assert options.budget == 300 and options.out == recorded_folder()
