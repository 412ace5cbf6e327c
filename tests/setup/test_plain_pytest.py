"""`pytest --nbval notebooks/NN.ipynb` needs what requirements.txt installs, and nothing more."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ONLY_TESTS = ("timeout", "xdist", "hypothesispytest", "xdist.looponfail")  # plugins beyond it


def test_a_lesson_is_collected_without_the_test_tools():
    without = [part for name in ONLY_TESTS for part in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "--nbval", "notebooks/04_memory.ipynb"]
    command += ["--collect-only", "-q", "-p", "no:cacheprovider", *without]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests collected" in done.stdout
