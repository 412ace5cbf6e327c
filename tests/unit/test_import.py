"""What `import kvlib` brings in, and what the core does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIONAL = ("ipywidgets", "IPython", "matplotlib", "transformers", "accelerate", "gguf",
            "tokenizers", "safetensors", "jupyterlab", "ipykernel")  # fmt: skip

BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code: str) -> str:
    """Run code in a fresh Python; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def imported() -> dict[str, float]:
    """Modules and seconds of `import torch`, then those that `import kvlib` adds."""
    out = python(
        "import sys, time\n"
        "began = time.perf_counter(); import torch\n"
        "middle = time.perf_counter(); before = set(sys.modules)\n"
        "import kvlib\n"
        "end = time.perf_counter()\n"
        "print(middle - began, end - middle, *sorted(set(sys.modules) - before))"
    )
    torch_seconds, seconds, *added = out.split()
    return {"torch_seconds": float(torch_seconds), "seconds": float(seconds), "added": added}


@pytest.mark.parametrize("package", OPTIONAL)
def test_import_brings_in_no_optional_package(imported, package):
    assert [name for name in imported["added"] if name.split(".")[0] == package] == []


def test_import_adds_few_modules_that_are_not_its_own(imported):
    own = [name for name in imported["added"] if name.split(".")[0] == "kvlib"]
    assert "kvlib.attention" in own
    assert not any(name.startswith(("kvlib.lab", "kvlib.teach")) for name in own)
    assert len(imported["added"]) - len(own) < 60


def test_import_costs_little_beyond_torch(imported):
    """Two times of one run compared; half of torch's is generous, a tenth is usual."""
    assert imported["seconds"] < 0.5 * imported["torch_seconds"]


def test_every_core_module_imports_and_runs_without_the_optional_packages():
    out = python(
        BLOCK
        + """
import importlib, pkgutil
import torch, kvlib
found = [m.name for m in pkgutil.walk_packages(kvlib.__path__, "kvlib.", onerror=lambda name: None)
         if not m.name.startswith(("kvlib.lab", "kvlib.teach"))]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
config = kvlib.ModelConfig(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, hidden_size=8,
                           intermediate_size=8, vocab_size=9)
print(len(kvlib.generate(kvlib.Model(config), [1, 2], 3)), *found)
"""
    )
    count, *found = out.split()
    assert count == "3"
    assert {"kvlib.attention", "kvlib.caches.static", "kvlib.model", "kvlib.weights"} <= set(found)


def test_a_missing_optional_package_is_named_when_it_is_needed(tmp_path):
    out = python(
        BLOCK
        + f"""
import kvlib, pathlib
folder = pathlib.Path({str(tmp_path)!r})
try:
    kvlib.load_checkpoint(folder)
except ImportError as error:
    print(error.name)
"""
    )
    assert out.strip() in ("safetensors", "tokenizers")


def test_every_public_name_is_there():
    import kvlib

    assert all(hasattr(kvlib, name) for name in kvlib.__all__)
    assert {
        "attention_with_kv_cache", "kv_cache_bytes", "load_smollm2", "generate", "MODELS",
        "DEVICES", "KVCache", "StaticKVCache",
    } <= set(kvlib.__all__)  # fmt: skip
