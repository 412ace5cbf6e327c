"""Build the C files of this folder into one library, once for a machine, and load it.

The compiler is the system's own (`cc`, or what CC names). Where there is none, or it is too old, the
reason is kept as a sentence and everything that has a way in PyTorch takes that way. The library lies in
kvlib's cache folder under a name made of the sources, the compiler and the processor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kvlib.model_file import home

FOLDER = Path(__file__).parent
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC"]
OPENMP = "-fopenmp"  # torch's own threads run it; without, one thread does
TUNED = "-march=native"
PATIENCE_S = 120


class NotBuilt(RuntimeError):
    """One sentence on why the C functions are unavailable here."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library, building it the first time. Raises NotBuilt."""
    compiler = _compiler()
    target = home() / "native" / f"kvlib-{_name(compiler)}.so"
    if not _is_whole(target):
        _build(compiler, target)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise NotBuilt(f"The C functions were built but do not load ({_first_line(error)}).") from None


@functools.cache
def why_not() -> str | None:
    """Return why the C functions are unavailable, in one sentence, or None where they are not."""
    if os.environ.get("KVLIB_NATIVE") == "0":
        return "KVLIB_NATIVE=0 turns the C functions off."
    try:
        library()
    except NotBuilt as error:
        return str(error)
    return None


def _compiler() -> list[str]:
    if sys.platform == "win32":
        raise NotBuilt("The C functions are written for GCC and Clang, which Windows does not bring.")
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NotBuilt(f"CC={os.environ['CC']!r} names no compiler ({error}).") from None
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise NotBuilt(
        f"No C compiler was found ({' '.join(named) or 'cc, gcc, clang'}); on Debian or Ubuntu "
        "`apt install gcc` brings one, on macOS `xcode-select --install`."
    )


def _name(compiler: list[str]) -> str:
    """Name the library after all that makes it what it is."""
    parts = [path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]"))]
    try:
        version = subprocess.run(
            [*compiler, "--version"], capture_output=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"`{compiler[0]}` does not run ({_first_line(error)}).") from None
    parts += [version.stdout, repr([FLAGS, OPENMP, TUNED]).encode(), _processor()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    """Describe the processor: a library tuned for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
        told = [line for line in lines if line.startswith((b"model name", b"flags", b"Features"))]
        return b"".join(sorted(set(told)))
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()


def _is_whole(target: Path) -> bool:
    """Say whether a library is there as it was built; loading half of one can kill the process."""
    try:
        return _sum_of(target) == target.with_suffix(".sha256").read_text()
    except OSError:
        return False


def _sum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _build(compiler: list[str], target: Path) -> None:
    sources = [str(path) for path in sorted(FOLDER.glob("*.c"))]
    errors = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            for extra in ([TUNED, OPENMP], [OPENMP], [TUNED], []):
                command = [*compiler, *FLAGS, *extra, *sources, "-o", str(made), "-lm"]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
                )
                if done.returncode == 0 and made.exists():
                    made.replace(target)  # whole or not at all, also with two at once
                    note = made.with_suffix(".sha256")
                    note.write_text(_sum_of(target))
                    note.replace(target.with_suffix(".sha256"))
                    return
                errors = errors or done.stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"Building the C functions failed: {_first_line(error)}.") from None
    raise NotBuilt(
        f"`{compiler[0]}` could not build the C functions ({_first_line(errors) or 'no message'}); GCC 12 "
        "or Clang 14 and later do."
    )


def _first_line(error) -> str:
    lines = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
    return lines[0].strip() if lines else ""
