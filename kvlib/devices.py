"""The one door to devices: CUDA, MPS and the CPU behind the same few functions.

Every function takes a torch.device or its name ("cuda", "cuda:1", "mps", "cpu"). Free bytes are
those this process could still use: a container's limit counts as well as the machine's memory, and
what torch holds in reserve on a GPU counts as free.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

ENVIRONMENT = "KVLIB_DEVICE"


def available_devices() -> list[torch.device]:
    """Return the devices of this machine, the fastest kind first; the CPU is always the last."""
    devices = []
    if torch.cuda.is_available():
        devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return [*devices, torch.device("cpu")]


def best_device() -> torch.device:
    """Return the device to use: what the variable KVLIB_DEVICE names, else the first available.

    Raises ValueError when KVLIB_DEVICE names a device that is not here.
    """
    wanted = os.environ.get(ENVIRONMENT, "").strip()
    if not wanted:
        return available_devices()[0]
    try:
        return resolve(wanted)
    except ValueError as error:
        raise ValueError(
            f"The environment variable {ENVIRONMENT} is {wanted!r}. {error} Change it, or unset it."
        ) from None


def resolve(device: torch.device | str) -> torch.device:
    """Return the device itself, with its number on CUDA; ValueError if it is not here."""
    here = available_devices()
    names = ", ".join(map(str, here))
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"{device!r} is not the name of a device; here are: {names}.") from None
    if found.type == "cuda" and found.index is None and here[0].type == "cuda":
        found = torch.device("cuda", torch.cuda.current_device())
    elif found.type != "cuda" and found.index in (None, 0):
        found = torch.device(found.type)
    if found not in here:
        raise ValueError(f"There is no device {str(device)!r} for PyTorch here; here are: {names}.")
    return found


def device_name(device: torch.device | str) -> str:
    """Return the name a person knows the device by; for a CPU with the threads torch uses."""
    device = resolve(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{_cpu_name()} GPU"
    threads = torch.get_num_threads()
    return f"{_cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"


def supported_dtypes(device: torch.device | str) -> tuple[torch.dtype, ...]:
    """Return the floating types a model can run in there, the usual one first."""
    device = resolve(device)
    if device.type == "cuda":
        native_bfloat16 = torch.version.hip is not None or (
            torch.cuda.get_device_capability(device)[0] >= 8
        )
        half = (torch.bfloat16, torch.float16) if native_bfloat16 else (torch.float16,)
        return (*half, torch.float32, torch.float64)
    if device.type == "mps":
        return (torch.float16, torch.bfloat16, torch.float32)
    return (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def total_memory(device: torch.device | str) -> int:
    """Return the bytes of the device, or of the container where that has less."""
    device = resolve(device)
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return min([_machine_memory()[0], *(limit for limit, _ in _cgroup_memory())])


def free_memory(device: torch.device | str) -> int:
    """Return the bytes this process could still allocate on the device without swapping."""
    device = resolve(device)
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    host = max(0, min([_machine_memory()[1], *(max_ - used for max_, used in _cgroup_memory())]))
    if device.type == "mps":  # one memory for both
        metal = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(0, min(host, metal))
    return host


def synchronize(device: torch.device | str) -> None:
    """Wait until everything queued on the device is done."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


def return_unused_memory(device: torch.device | str) -> None:
    """Hand memory that torch keeps in reserve back to the device."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.empty_cache()
    elif kind == "mps":
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Tell a failed allocation, on any device, from every other error."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    said = str(error).lower()
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "invalid buffer size")
    return isinstance(error, RuntimeError) and any(phrase in said for phrase in phrases)


@cache
def _cpu_name() -> str:
    """Find the processor's name; each system keeps it elsewhere."""
    name = ""
    try:
        system = platform.system()
        if system == "Linux":
            for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
                if line.startswith("model name"):
                    name = line.partition(":")[2]
                    break
        elif system == "Darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
        elif system == "Windows":
            import winreg

            where = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:
                name = winreg.QueryValueEx(key, "ProcessorNameString")[0]
    except (OSError, subprocess.SubprocessError):
        pass
    name = name.strip() or platform.processor().strip() or platform.machine() or "CPU"
    for mark in ("(R)", "(TM)", "(r)", "(tm)"):
        name = name.replace(mark, "")
    return " ".join(name.split())


def _machine_memory() -> tuple[int, int]:
    """Return the whole machine's memory and what of it is available, in bytes."""
    try:
        import psutil
    except ImportError:
        try:
            page = os.sysconf("SC_PAGE_SIZE")
            return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            raise RuntimeError(
                "Nothing here can tell how much memory is free: pip install psutil."
            ) from None
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _cgroup_memory(root: Path = Path("/")) -> list[tuple[int, int]]:
    """Return (limit, used) of every memory group above this process: Linux, versions 1 and 2.

    File pages the kernel can drop at once are not counted as used.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mount = root / "sys/fs/cgroup"
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for base in (mount, mount / "unified"):
                found += _groups(base, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _groups(mount / "memory", path, *names)
    return found


def _groups(base: Path, path: str, limit: str, usage: str, droppable: str) -> list[tuple[int, int]]:
    """Read one group and all its parents; in a container only the mount's root may be seen."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    found = []
    for depth in range(len(parts), -1, -1):
        folder = base.joinpath(*parts[:depth])
        try:
            most = int((folder / limit).read_text())  # "max" where there is no limit
            used = int((folder / usage).read_text())
            for line in (folder / "memory.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == droppable:
                    used -= min(used, int(value))
        except (OSError, ValueError):
            continue
        found.append((most, used))
    return found
