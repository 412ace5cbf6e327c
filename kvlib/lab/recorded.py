"""Recordings in the live lab: where they come from, which fit, how they are named and told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvlib import recording_file
from kvlib.lab.checks import shown
from kvlib.lab.curves import Setting, View
from kvlib.lab.style import format_ratio, format_time
from kvlib.recording import Recording, recorded_folder


def recordings_from(recorded) -> tuple[list[Recording], list[str]]:
    """Return the recordings, and a sentence for each file that is none.

    `recorded` is None (all of assets/recorded), a file, a folder, a Recording, or a list of these.
    Raises ValueError for anything else; what is wrong with a file is never raised.
    """
    if recorded is None:
        return recording_file.find(recorded_folder())
    if isinstance(recorded, Recording):
        return [recorded], []
    if isinstance(recorded, (str, os.PathLike)):
        return _from_path(Path(recorded))
    if isinstance(recorded, (list, tuple)):
        every = [recordings_from(item) for item in recorded if item is not None]
        return [it for found, _ in every for it in found], [text for _, said in every for text in said]
    raise ValueError(f"recorded must be a file, a folder or a Recording, and {shown(recorded)} is none.")


def _from_path(path: Path) -> tuple[list[Recording], list[str]]:
    if os.path.isdir(path):
        return recording_file.find(path)
    try:
        return [recording_file.load(path)], []
    except ValueError as error:
        return [], [str(error)]


def name_of(recording: Recording) -> str:
    """Return the device and the day."""
    return f"{recording.device}, {recording.date}"


def options(recordings: Sequence[Recording], setting: Setting) -> list[tuple[str, int]]:
    """Return (name, index) of each recording of this shape, element type and batch."""
    fitting, names = [], []
    for index, it in enumerate(recordings):
        if it.fits(setting.preset, setting.dtype, setting.batch):
            name = name_of(it) + (" (partial)" if it.partial else "")
            names.append(name)
            again = names.count(name)
            fitting.append((f"{name} ({again})" if again > 1 else name, index))
    return fitting


def notice(problems: Sequence[str]) -> str:
    """Return what is said of the files that could not be used; nothing where all could."""
    if not problems:
        return ""
    more = len(problems) - 1
    rest = f" {more} more {'was' if more == 1 else 'were'} not used either." if more else ""
    return f"A recorded file was not used: {problems[0]}{rest}"


def sentence(view: View) -> str:
    """Return what the chosen recording says about the selected point; nothing where none is chosen."""
    it, setting = view.recorded, view.setting
    if it is None:
        return ""
    place = (setting.kind, setting.kv_heads(), setting.context)
    point = it.point(*place)
    if point is None:
        said = f"The recording made on {name_of(it)}, has no time for this point{_why(it, place)}"
    else:
        took, floor = format_time(point.seconds), format_time(point.floor)
        said = (
            f"Recorded, not measured here: on {name_of(it)}, it took {took}, "
            f"{format_ratio(point.seconds / point.floor)} times the floor of {floor} there."
        )
        if view.timing is not None:
            said += f" Here it took {_compared(view.timing.seconds / point.seconds)}."
    return f"{said} That recording was stopped before it was complete." if it.partial else said


def _why(it: Recording, place: tuple) -> str:
    kind, heads, _ = place
    reason = it.refusal(*place)
    if reason is not None:
        return f": {reason}"
    if it.kv_heads(kind) != heads:
        return f": it has {kind} with {it.kv_heads(kind)} KV heads."
    return "."


def _compared(ratio: float) -> str:
    if 0.95 <= ratio < 1.05:
        return "as long"
    if ratio > 1:
        return f"{format_ratio(ratio)} times as long"
    return f"less, by a factor of {format_ratio(1 / ratio)}"
