"""Recordings as they come from files: checked whole before anything of them is used.

A file holds a recording, or a ValueError says in one sentence why it holds none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from pathlib import Path

from kvlib.grid import BATCHES, CONTEXTS, ELEMENT_BYTES, KINDS, grouped_choices, kv_heads_of
from kvlib.memory import ModelPreset
from kvlib.recording import FORMAT, SHAPE, VERSION, RecordedPoint, Recording, RefusedPoint

LARGEST_FILE = 200_000  # bytes; a whole grid takes about 6,000
MOST_FILES = 100  # of one folder


def find(folder: Path) -> tuple[list[Recording], list[str]]:
    """Return the recordings of a folder by file name, and a sentence for each file that is none."""
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{_plain(Path(folder).name)} cannot be listed ({error.strerror})."]
    found, problems = [], []
    if len(files) > MOST_FILES:
        problems.append(f"Of {len(files)} recordings the first {MOST_FILES} were read.")
    for path in files[:MOST_FILES]:
        try:
            found.append(load(path))
        except ValueError as error:
            problems.append(str(error))
    return found, problems


def load(path: Path) -> Recording:
    """Return the recording in a file; ValueError, with the file's name, where it holds none."""
    path = Path(path)
    try:
        return parse(_read(path))
    except RecursionError:
        why = "it is nested too deeply."
    except (ValueError, OSError) as error:
        why = (error.strerror or type(error).__name__) if isinstance(error, OSError) else error
    raise ValueError(f"{_plain(path.name)} is no recording: {why}")


def _read(path: Path) -> str:
    """Return a file's text; ValueError for what is no plain file, too large, or no text."""
    if not path.is_file():  # a pipe would never end
        raise ValueError("there is no such file." if not path.exists() else "it is no plain file.")
    with open(path, "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"it is larger than {LARGEST_FILE:,} bytes.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8.") from None


# Checking ---------------------------------------------------------------------------------------


def parse(text: str) -> Recording:
    """Return the recording that a text holds; ValueError with a sentence where it holds none."""
    try:
        data = json.loads(text, parse_int=_int, parse_constant=_no_number, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON (line {error.lineno}).") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError("it was not written by kvlib.record.")
    if data.get("version") != VERSION or data["version"] is True:
        raise ValueError(
            f"it is of version {_shown(data.get('version'))} and this kvlib reads version {VERSION}: "
            "record it again."
        )
    known = ["format", "version", *(f.name for f in fields(Recording))]
    data = _fields(data, ["model" if name == "preset" else name for name in known], "it")
    preset = _preset(data["model"])
    recording = Recording(
        device=_text(data, "device", 80), date=_date(data["date"]), kvlib=_text(data, "kvlib", 40),
        torch=_text(data, "torch", 40),
        cuda=None if data["cuda"] is None else _text(data, "cuda", 40), preset=preset,
        dtype=_one_of(data, "dtype", ELEMENT_BYTES), batch=_one_of(data, "batch", BATCHES),
        bandwidth=_number(data, "bandwidth", 1e3, 1e18),
        flop_rate=_number(data, "flop_rate", 1e3, 1e21),
        partial=_one_of(data, "partial", (True, False)),
        points=_rows(data, "points", preset, _measured),
        refused=_rows(data, "refused", preset, _refused),
    )  # fmt: skip
    _check_together(recording)
    return recording


def _check_together(it: Recording) -> None:
    """Refuse points that contradict each other or the rates beside them."""
    if not it.points:
        raise ValueError("it holds no measured point.")
    both = [(row.kind, row.context) for row in (*it.points, *it.refused)]
    if len(both) != len(set(both)):
        raise ValueError("a point stands twice in it, measured or refused.")
    if len({row.kv_heads for row in (*it.points, *it.refused) if row.kind == "GQA"}) > 1:
        raise ValueError("its GQA points have different KV heads.")
    for p in it.points:
        if not math.isclose(p.floor, it.floor(p.kv_heads, p.context), rel_tol=1e-3):
            raise ValueError(f"the floor of {p.kind} at {p.context:,} tokens does not follow from its rates.")


def _rows(data: Mapping, name: str, preset: ModelPreset, make) -> tuple:
    """Return the points of a list, which must stand by kind and ascending context."""
    rows = data[name]
    if not isinstance(rows, list) or len(rows) > len(KINDS) * len(CONTEXTS):
        raise ValueError(f"its {name} are no list of at most {len(KINDS) * len(CONTEXTS)}.")
    made = tuple(make(row, preset) for row in rows)
    order = [(KINDS.index(row.kind), row.context) for row in made]
    if order != sorted(order):
        raise ValueError(f"its {name} are not sorted by kind and context.")
    return made


def _measured(row, preset: ModelPreset) -> RecordedPoint:
    row = _fields(row, [f.name for f in fields(RecordedPoint)], "a point")
    times = {name: _number(row, name, 1e-9, 1e5) for name in ("seconds", "low", "high", "floor")}
    if not times["low"] <= times["seconds"] <= times["high"]:
        raise ValueError("a point's median lies outside its quartiles.")
    return RecordedPoint(**_place(row, preset), **times, samples=_whole(row, "samples", 10**6))


def _refused(row, preset: ModelPreset) -> RefusedPoint:
    row = _fields(row, [f.name for f in fields(RefusedPoint)], "a refused point")
    return RefusedPoint(**_place(row, preset), reason=_text(row, "reason", 400))


def _place(row: Mapping, preset: ModelPreset) -> dict:
    kind, context = _one_of(row, "kind", KINDS), _one_of(row, "context", CONTEXTS)
    allowed = grouped_choices(preset) if kind == "GQA" else (kv_heads_of(preset, kind),)
    return {"kind": kind, "kv_heads": _one_of(row, "kv_heads", allowed), "context": context}


def _preset(data) -> ModelPreset:
    data = _fields(data, SHAPE, "its model")
    sizes = {name: _whole(data, name, 10**7) for name in SHAPE[1:-1]}
    tied = _one_of(data, "tie_embeddings", (True, False))
    preset = ModelPreset(_text(data, "name", 80), **sizes, tie_embeddings=tied)
    if not grouped_choices(preset):
        raise ValueError("its model has no choice of KV heads between 1 and all.")
    return preset


def _fields(data, names, what: str) -> dict:
    if not isinstance(data, dict):
        raise ValueError(f"{what} is no object with fields, but {_shown(data)}.")
    missing = [name for name in names if name not in data]
    unknown = [name for name in data if name not in names]
    if missing or unknown:
        why = f"lacks {_shown(missing[0])}" if missing else f"has an unknown {_shown(unknown[0])}"
        raise ValueError(f"{what} {why}.")
    return data


def _text(data: Mapping, name: str, longest: int) -> str:
    """Return a text that every font and every screen can show."""
    value = data[name]
    right = isinstance(value, str) and 0 < len(value) <= longest and value.strip() == value
    if not right or not value.isascii() or not value.isprintable():
        raise ValueError(f"its {name} is no plain text of up to {longest} characters.")
    return value


def _date(value) -> str:
    try:
        if date.fromisoformat(value).isoformat() == value:
            return value
    except (TypeError, ValueError):
        pass
    raise ValueError(f"its date is no day as YYYY-MM-DD, but {_shown(value)}.")


def _whole(data: Mapping, name: str, most: int) -> int:
    value = data[name]
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"its {name} is no whole number from 1 to {most:,}, but {_shown(value)}.")
    return value


def _number(data: Mapping, name: str, least: float, most: float) -> float:
    value = data[name]
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"its {name} is no number from {least:g} to {most:g}, but {_shown(value)}.")
    return float(value)


def _one_of(data: Mapping, name: str, known):
    for value in known:
        if data[name] == value and type(data[name]) is type(value):
            return value
    raise ValueError(f"its {name} is none of {', '.join(map(str, known))}, but {_shown(data[name])}.")


def _int(digits: str) -> int:
    if len(digits) > 30:
        raise ValueError(f"it holds a number of {len(digits):,} digits.")
    return int(digits)


def _no_number(name: str):
    raise ValueError(f"it holds {name}, which is no number.")


def _once(pairs) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands twice in it.")
    return found


def _shown(value) -> str:
    """Return what stood in a file, short and plain."""
    return _short(ascii(value))


def _plain(name: str) -> str:
    """Return a file's name in plain text."""
    return _short(ascii(name)[1:-1])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
