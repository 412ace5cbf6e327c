"""Keep every run apart from the user's own progress, and share the work between processes.

It stands at the root because it serves the lessons in notebooks/ as well as tests/.
"""

import json
import os
import shutil
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as course.py sets it; torch reads it once

import pytest  # noqa: E402

from kvlib.model_file import model_home  # noqa: E402

HOME = pytest.StashKey[str]()


def pytest_configure(config):
    """Give this process a home of its own; the model stays where the user has it."""
    if getattr(config.option, "nbval_sanitize_with", "") is None:  # PNG bytes are matplotlib's, not ours
        config.option.nbval_sanitize_with = str(config.rootpath / "tests/notebooks/pictures.cfg")
    os.environ["KVLIB_MODEL_HOME"] = str(model_home())
    os.environ["KVLIB_NO_PROGRESS"] = "1"  # a bar is for a person who watches
    config.stash[HOME] = os.environ["KVLIB_HOME"] = tempfile.mkdtemp(prefix="kvlib-test-")


def pytest_report_header(config):
    """Say how many of the lessons' cells are not compared with a new run."""
    tags = [
        cell["metadata"].get("tags", [])
        for path in (config.rootpath / "notebooks").glob("*.ipynb")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    measured = sum("nbval-ignore-output" in these for these in tags)
    return f"lessons: {measured} of {len(tags)} code cells show a measurement and are not compared"


def pytest_unconfigure(config):
    shutil.rmtree(config.stash[HOME], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Start each notebook with the progress of nobody, as the build did."""
    if item.path.suffix == ".ipynb" and item.name == "Cell 0":
        os.environ["KVLIB_HOME"] = tempfile.mkdtemp(dir=item.config.stash[HOME])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a process whole files, above all a notebook's cells in order (`--dist loadfile`)."""
    from xdist.scheduler import LoadFileScheduling

    class WholeFiles(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return work_unit(nodeid)

    return WholeFiles(config, log) if config.getvalue("dist") == "loadfile" else None


def work_unit(nodeid: str) -> str:
    """Return what a test must share a process with: its file, with two exceptions."""
    file = nodeid.split("::")[0]
    if file.startswith("tests/browser/"):
        return "tests/browser"  # one JupyterLab and one browser serve them all
    if file == "tests/notebooks/test_run.py":
        return nodeid  # long, and each with a kernel of its own
    return file
