import pytest

for name in ("input", "lifetime", "literal", "memory", "parity", "quantized", "window"):
    pytest.register_assert_rewrite(f"tests.caches.laws_{name}")
