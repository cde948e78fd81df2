"""What a training process frees stays with it: the next update finds its pages as they were."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

import regard.cli

ALLOCATOR = Path(regard.cli.__file__).with_name("_allocator.py")
FAULTS = """
import resource, runpy, sys
if sys.argv[1] == "keep":
    assert runpy.run_path(sys.argv[2])["keep_freed_memory"]()

def update():
    blocks = [bytearray(b"1") * (5 << 20), bytearray(b"2") * (50 << 20)]

update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def has_mallopt():
    try:
        return hasattr(ctypes.CDLL(None), "mallopt")
    except TypeError:  # on Windows
        return False


def faults(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-I", "-c", FAULTS, *arguments, ALLOCATOR],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.skipif(not has_mallopt(), reason="the C library has no mallopt")
def test_an_update_after_the_first_touches_no_new_page():
    # A block of 50 MiB is above every threshold that glibc sets by itself.
    assert int(faults("leave").stdout) > 1000
    assert int(faults("keep").stdout) < 100


@pytest.mark.skipif(not has_mallopt(), reason="the C library has no mallopt")
def test_settings_of_the_environment_stay():
    assert "AssertionError" in faults("keep", MALLOC_ARENA_MAX="1").stderr
