"""The native library is loaded once, at its first use, with the best or a named instruction set."""

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
import torch
from support.processes import run_script

import regard
from regard.backends.native import library

WHEEL = importlib.metadata.distribution("regard").read_text("WHEEL")
with_library = pytest.mark.skipif(
    "Root-Is-Purelib: true" in WHEEL, reason="regard was installed without its library on purpose"
)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CPUINFO = Path("/proc/cpuinfo")
PRINT_SET = """
from regard.backends.native import library
print(library.load().regard_instructions().decode())
"""

# In float32, then in bfloat16, with a stack of 8 KiB for signals or with none.
REQUEST_TILES = """
import ctypes, sys, torch, regard
from regard.backends.native import library

class Stack(ctypes.Structure):
    _fields_ = ("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)

query = torch.randn(1, 2, 257, 64, generator=torch.Generator().manual_seed(0))
regard.attention(query, query, query)
if sys.argv[1] == "small":
    memory = ctypes.create_string_buffer(8192)
    stack = Stack(ctypes.addressof(memory), 0, len(memory))
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
half = query.bfloat16()
context = regard.attention(half, half, half)
assert library.load().regard_choose(b"avx512") == 0
print(torch.equal(context, regard.attention(half, half, half)))
"""

# What another library that uses tiles does: `ldtilecfg [rdi]; ret` and `sttilecfg [rdi]; ret`.
CONFIGURE_TILES = """
import ctypes, mmap, torch, regard

code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("c4e2784907c3 9090 c4e2794907c3"))
start = ctypes.addressof(ctypes.c_char.from_buffer(code))
load, store = (ctypes.CFUNCTYPE(None, ctypes.c_char_p)(start + at) for at in (0, 8))

torch.set_num_threads(1)
query = torch.randn(1, 1, 67, 32, dtype=torch.bfloat16)
context = regard.attention(query, query, query)
theirs = bytearray(64)
theirs[0], theirs[16], theirs[48] = 1, 20, 3  # the first tile: 3 rows of 20 bytes
load(bytes(theirs))
assert torch.equal(regard.attention(query, query, query), context)
left = ctypes.create_string_buffer(64)
store(left)
print(left.raw == bytes(theirs))
"""


@pytest.fixture
def fresh():
    """The module as it is before its first use; afterwards the set of instructions is as before."""
    used = library.load().regard_instructions() if library.why_missing() is None else None
    library._open.cache_clear()
    yield library
    library._open.cache_clear()
    if used:
        library.load().regard_choose(used)


def supported():
    return library.load().regard_supported().decode().split(",")


@with_library
def test_the_library_is_installed():
    assert library.why_missing() is None
    assert library.load() is library.load()


@with_library
def test_the_best_set_is_used_unless_one_is_named():
    printed = run_script(PRINT_SET, env=os.environ | {"REGARD_INSTRUCTIONS": ""})
    assert printed.split() == supported()[:1]


@with_library
@pytest.mark.parametrize(
    "name", ["amx", "avx512bf16", "avx512vnni", "avx512", "avx2", "baseline", "avx3"]
)
def test_a_set_that_is_named_is_used_or_refused(name, fresh, monkeypatch):
    sets = supported()
    library._open.cache_clear()
    monkeypatch.setenv("REGARD_INSTRUCTIONS", name)
    if name in sets:
        assert fresh.load().regard_instructions().decode() == name
    else:
        with pytest.raises(ValueError, match=f"^REGARD_INSTRUCTIONS is '{name}'") as error:
            fresh.load()
        assert all(each in str(error.value) for each in sets)


@with_library
def test_the_processor_runs_the_baseline_and_no_set_that_was_not_built():
    built = library.load().regard_built().decode().split(",")
    assert "baseline" in supported()
    assert [name for name in built if name in supported()] == supported()


@with_library
@pytest.mark.skipif(not CPUINFO.exists(), reason="the system does not name the processor's maker")
def test_dot_products_of_bfloat16_come_last_on_intels_processors():
    intel = "GenuineIntel" in CPUINFO.read_text()
    sets = supported()
    if "avx512bf16" in sets:
        assert (sets[-1] == "avx512bf16") == intel


@with_library
@pytest.mark.parametrize(("stack", "same_as_avx512"), [("none", False), ("small", True)])
def test_tiles_are_requested_when_they_are_first_used(stack, same_as_avx512):
    """Linux grants them only where stacks for signals are large, and from then on they must be."""
    if "amx" not in supported():
        pytest.skip("the processor has no AMX")
    assert run_script(REQUEST_TILES, stack).split() == [str(same_as_avx512)]


@with_library
def test_tiles_are_left_as_another_library_configured_them():
    if "amx" not in supported():
        pytest.skip("the processor has no AMX")
    assert run_script(CONFIGURE_TILES).split() == ["True"]


def test_a_missing_library_says_so_and_torch_serves(fresh, monkeypatch):
    monkeypatch.setattr(library, "_path", lambda: None)
    assert fresh.load() is None
    assert "no native library" in fresh.why_missing()
    query, key, value = torch.randn(3, 2, 7, 5, generator=torch.Generator().manual_seed(0))
    context = regard.attention(query, key, value, mask=regard.causal())
    torch.testing.assert_close(context[:, 0], value[:, 0])  # the first query sees the first key


def test_a_file_that_is_no_library_says_so(fresh, monkeypatch, tmp_path):
    file = tmp_path / "libregard.so"
    file.write_text("no library")
    monkeypatch.setattr(library, "_path", lambda: file)
    assert fresh.load() is None
    assert fresh.why_missing().startswith("the native library can't be loaded: ")
    assert str(file) in fresh.why_missing()


@with_library
def test_a_library_of_another_version_says_both_numbers(fresh, monkeypatch):
    ours = library._ABI
    monkeypatch.setattr(library, "_ABI", 1009)
    with pytest.warns(UserWarning, match="this regard needs 1009; install it again"):
        assert fresh.load() is None
    assert f"has ABI {ours}, but this regard needs 1009" in fresh.why_missing()


@with_library
@on_linux
def test_importing_regard_loads_nothing_and_loading_brings_no_second_openmp():
    script = """
import re
import regard

regard.attention  # brings torch

def loaded(name):
    with open("/proc/self/maps") as maps:
        return sorted(set(re.findall(rf"/.*/{name}[^/]*\\.so.*", maps.read())))

before = loaded("lib(?:gomp|omp|iomp)")
assert before, "torch brings its own"
assert not loaded("libregard"), "import regard loads the library"
from regard.backends.native import library
assert library.load() is not None
assert len(loaded("libregard")) == 1
assert loaded("lib(?:gomp|omp|iomp)") == before, "the library brings an OpenMP of its own"
"""
    run_script(script, env=os.environ | {"REGARD_INSTRUCTIONS": ""})
