"""The device door. CUDA and MPS are stood in for, so that their branches run on any machine."""

from types import SimpleNamespace

import pytest
import torch

from kvlib import devices

GB = 10**9


@pytest.fixture
def two_gpus(monkeypatch):
    """Pretend to two GPUs of 80 GB: 30 GB free, 7 reserved by torch of which 5 hold tensors."""
    fake = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 1,
        "get_device_name": lambda d: f"NVIDIA Test {d.index}",
        "get_device_properties": lambda d: SimpleNamespace(total_memory=80 * GB),
        "get_device_capability": lambda d: (9, 0) if d.index == 0 else (7, 5),
        "mem_get_info": lambda d: (30 * GB, 80 * GB),
        "memory_reserved": lambda d: 7 * GB,
        "memory_allocated": lambda d: 5 * GB,
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.delenv("KVLIB_DEVICE", raising=False)


@pytest.fixture
def only_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.delenv("KVLIB_DEVICE", raising=False)


def test_cpu_is_always_there(only_cpu):
    assert devices.available_devices() == [torch.device("cpu")]
    assert devices.best_device() == torch.device("cpu")
    assert devices.resolve("cpu:0") == torch.device("cpu")


def test_gpus_come_first(two_gpus):
    found = [str(d) for d in devices.available_devices()]
    assert found == ["cuda:0", "cuda:1", "cpu"]
    assert str(devices.best_device()) == "cuda:0"
    assert str(devices.resolve("cuda")) == "cuda:1"  # the current one


def test_gpu_memory_counts_what_torch_holds_in_reserve(two_gpus):
    assert devices.total_memory("cuda:0") == 80 * GB
    assert devices.free_memory("cuda:0") == 32 * GB


def test_gpu_names_and_dtypes(two_gpus):
    assert devices.device_name("cuda:1") == "NVIDIA Test 1"
    assert devices.supported_dtypes("cuda:0")[0] is torch.bfloat16
    assert devices.supported_dtypes("cuda:1") == (torch.float16, torch.float32, torch.float64)


def test_mps(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12 * GB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 2 * GB)
    monkeypatch.setattr(devices, "_machine_memory", lambda: (16 * GB, 9 * GB))
    monkeypatch.setattr(devices, "_cgroup_memory", lambda: [])
    assert [str(d) for d in devices.available_devices()] == ["mps", "cpu"]
    assert devices.total_memory("mps") == 12 * GB
    assert (
        devices.free_memory("mps") == 9 * GB
    )  # one memory: the machine has less than Metal allows
    assert torch.float64 not in devices.supported_dtypes("mps")


def test_environment_overrides(two_gpus, monkeypatch):
    monkeypatch.setenv("KVLIB_DEVICE", "cpu")
    assert devices.best_device() == torch.device("cpu")
    monkeypatch.setenv("KVLIB_DEVICE", "cuda:1")
    assert devices.best_device() == torch.device("cuda", 1)
    monkeypatch.setenv("KVLIB_DEVICE", "  ")
    assert devices.best_device() == torch.device("cuda", 0)


@pytest.mark.parametrize("wanted", ["cuda", "cuda:7", "mps", "toaster"])
def test_environment_names_what_is_missing(only_cpu, monkeypatch, wanted):
    monkeypatch.setenv("KVLIB_DEVICE", wanted)
    with pytest.raises(ValueError, match=f"KVLIB_DEVICE is '{wanted}'.*here are: cpu.*unset"):
        devices.best_device()


@pytest.mark.parametrize("bad", ["cuda:2", "xla", "", 3.5])
def test_devices_that_are_not_there(two_gpus, bad):
    with pytest.raises(ValueError, match="cuda:0, cuda:1, cpu"):
        devices.resolve(bad)


def test_cpu_name_counts_threads(only_cpu):
    name = devices.device_name("cpu")
    assert str(torch.get_num_threads()) in name and "thread" in name
    assert "(R)" not in name and not name.startswith(",")


def test_cpu_memory_is_sane(only_cpu):
    assert 0 < devices.free_memory("cpu") <= devices.total_memory("cpu")
    assert devices.supported_dtypes("cpu")[0] is torch.float32
    devices.synchronize("cpu")
    devices.return_unused_memory("cpu")


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_cgroup_version_2_counts_parents_and_droppable_pages(tmp_path):
    write(tmp_path / "proc/self", cgroup="0::/box/job\n")
    mount = tmp_path / "sys/fs/cgroup"
    stat = "anon 5\ninactive_file 40\nfile 60\n"
    write(mount / "box/job", memory__max="max\n", memory__current="100\n", memory__stat=stat)
    write(mount / "box", memory__max="1000\n", memory__current="300\n", memory__stat=stat)
    assert devices._cgroup_memory(tmp_path) == [(1000, 260)]


def test_cgroup_version_1_with_only_the_mount_visible(tmp_path):
    write(tmp_path / "proc/self", cgroup="9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n")
    write(
        tmp_path / "sys/fs/cgroup/memory",
        memory__limit_in_bytes="2000\n",
        memory__usage_in_bytes="700\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 200\n",
    )
    assert devices._cgroup_memory(tmp_path) == [(2000, 500)]


def test_no_cgroups(tmp_path):
    assert devices._cgroup_memory(tmp_path) == []


def test_the_tightest_limit_wins(only_cpu, monkeypatch):
    monkeypatch.setattr(devices, "_machine_memory", lambda: (16 * GB, 9 * GB))
    monkeypatch.setattr(devices, "_cgroup_memory", lambda: [(4 * GB, GB), (2**63, 0)])
    assert devices.total_memory("cpu") == 4 * GB
    assert devices.free_memory("cpu") == 3 * GB
    monkeypatch.setattr(devices, "_cgroup_memory", lambda: [(4 * GB, 5 * GB)])
    assert devices.free_memory("cpu") == 0


def test_out_of_memory_is_told_apart():
    assert devices.is_out_of_memory(MemoryError())
    assert devices.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert devices.is_out_of_memory(caught.value)
    assert not devices.is_out_of_memory(RuntimeError("shapes differ"))
    assert not devices.is_out_of_memory(ValueError("out of memory"))
