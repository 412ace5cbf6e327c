"""Keep every run apart from the user's own progress, and share the work between processes.

It stands at the root because it serves the lessons in notebooks/ as well as tests/.
"""

import os
import shutil
import tempfile

import pytest

from kvlib.model_file import model_home


def pytest_configure(config):
    """Give this process a home of its own; the model stays where the user has it."""
    os.environ["KVLIB_MODEL_HOME"] = str(model_home())
    config.stash[HOME] = os.environ["KVLIB_HOME"] = tempfile.mkdtemp(prefix="kvlib-test-")


def pytest_unconfigure(config):
    shutil.rmtree(config.stash[HOME], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep the cells of a notebook in one process, and the tests of a file, unless marked."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            lesson = getattr(item, "callspec", None) and item.callspec.params.get("lesson")
            group = f"{item.path.name}-{lesson}" if lesson else item.nodeid.split("::")[0]
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Start each notebook with the progress of nobody, as the build did."""
    if item.path.suffix == ".ipynb" and item.name == "Cell 0":
        os.environ["KVLIB_HOME"] = tempfile.mkdtemp(dir=item.config.stash[HOME])


HOME = pytest.StashKey[str]()
