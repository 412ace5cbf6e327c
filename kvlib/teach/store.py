"""The learner's progress, kept in one JSON file that several notebooks may write at once.

Standard library only. It does not know what the entries mean: a section and a key name one entry,
a dict. Nothing here raises over the file: what cannot be kept on disk is kept in memory, and
`trouble` says so.
"""

import copy
import json
import os
import tempfile
import time
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from kvlib.model_file import home

VERSION = 1
SECTIONS = ("guesses", "exercises", "quizzes")
LOCK_PATIENCE_S = 1.0  # how long a write waits for another notebook's write
LOCK_STALE_S = 10.0  # a lock this old was left by a process that died


class Unreadable(Exception):
    """The file is there, and is not a progress file that this version can read."""


class NewerVersion(Unreadable):
    """The file was written by a later version of the course."""


class ProgressFile:
    """Keep entries under (section, key) in the file at `path`; `trouble` is a sentence, or ""."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.trouble = self._aside = ""
        self._unsaved: dict[str, dict[str, dict]] = {section: {} for section in SECTIONS}

    def entries(self, section: str) -> dict[str, dict]:
        """Return every entry of a section, by key: the file's, with what is unsaved on top."""
        return self._merged(self._load())[section]

    def get(self, section: str, key: str) -> dict:
        """Return one entry, or an empty dict."""
        return self.entries(section).get(key, {})

    def put(self, section: str, key: str, **fields) -> None:
        """Set fields of one entry: re-read the file, merge, write it in one move."""
        unsaved = self._unsaved[section]
        unsaved[key] = {**unsaved.get(key, {}), **fields}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(self.path):
                self._set_aside_if_unreadable()
                _write(self.path, self._merged(_read(self.path)))
        except (OSError, Unreadable) as error:
            self._explain(error)
        else:
            self._unsaved = {name: {} for name in SECTIONS}
            self.trouble = self._aside

    def forget(self) -> None:
        """Drop every entry, on disk and in memory."""
        self._unsaved = {section: {} for section in SECTIONS}
        self.trouble = self._aside = ""
        try:
            if self.path.exists():
                with _lock(self.path):
                    self.path.unlink(missing_ok=True)
        except OSError as error:
            self._explain(error)

    def _load(self) -> dict:
        try:
            return _read(self.path)
        except (OSError, Unreadable) as error:
            self._explain(error)
            return _empty()

    def _merged(self, document: dict) -> dict:
        merged = copy.deepcopy(document)
        for section, entries in self._unsaved.items():
            for key, fields in entries.items():
                merged[section][key] = {**merged[section].get(key, {}), **fields}
        return merged

    def _set_aside_if_unreadable(self) -> None:
        try:
            _read(self.path)
        except NewerVersion:
            raise
        except Unreadable:
            names = (f"progress-unreadable{n}.json" for n in chain([""], count(-2, -1)))
            aside = next(path for path in map(self.path.with_name, names) if not path.exists())
            os.replace(self.path, aside)
            self._aside = (
                f"The progress file could not be read. It was kept as {aside.name}, "
                "and progress starts anew."
            )

    def _explain(self, error: Exception) -> None:
        if isinstance(error, NewerVersion):
            reason = "was written by a newer version of the course, so it is left alone"
        elif isinstance(error, Unreadable):
            reason = "could not be read"
        else:
            reason = f"cannot be used ({error.strerror or type(error).__name__})"
        self.trouble = (
            f"The progress file {self.path} {reason}; "
            "progress is kept in memory until the kernel stops."
        )


_files: dict[Path, ProgressFile] = {}


def progress_file() -> ProgressFile:
    """Return the progress file of this user, under kvlib.model_file.home()."""
    path = Path(home()) / "progress.json"
    return _files.setdefault(path, ProgressFile(path))


def _empty() -> dict:
    return {"version": VERSION, **{section: {} for section in SECTIONS}}


def _read(path: Path) -> dict:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _empty()
    except UnicodeDecodeError as error:
        raise Unreadable("not text") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable("not JSON") from error
    if not isinstance(document, dict) or not isinstance(document.get("version"), int):
        raise Unreadable("not a progress file")
    if document["version"] > VERSION:
        raise NewerVersion("newer")
    for section in SECTIONS:
        entries = document.setdefault(section, {})
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            raise Unreadable(f"{section} is damaged")
    return document


def _write(path: Path, document: dict) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".progress-", suffix=".json", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, sort_keys=True)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _lock(path: Path):
    """Hold a lock file while reading and writing; after a short wait, go on without it."""
    lock = path.with_name(path.name + ".lock")
    held = False
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while not held:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            held = True
        except (
            FileExistsError,
            PermissionError,
        ):  # Windows says PermissionError while it is deleted
            if time.monotonic() > deadline:
                break
            _remove_stale(lock)
            time.sleep(0.01)
    try:
        yield
    finally:
        if held:
            lock.unlink(missing_ok=True)


def _remove_stale(lock: Path) -> None:
    try:
        if time.time() - lock.stat().st_mtime > LOCK_STALE_S:
            lock.unlink(missing_ok=True)
    except OSError:
        pass  # another notebook was faster
