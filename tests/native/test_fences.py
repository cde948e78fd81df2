"""No memory outside a tensor is accessed, for any computation and sizes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cpu_paths import SETS

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")


def fenced(*arguments, instructions=""):
    environment = os.environ | {"REGARD_INSTRUCTIONS": instructions}
    command = [sys.executable, "-X", "faulthandler", Path(__file__).with_name("fenced.py")]
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False
    )


# The processor's best set; the sanitizer of memory looks at the others as well.
FENCED = [(name, "") for name in SETS[:1]]
FENCED += [pytest.param(name, "all", marks=pytest.mark.thorough) for name in SETS]


@pytest.mark.parametrize(("instructions", "argument"), FENCED)
def test_no_memory_outside_tensors_is_accessed(instructions, argument):
    run = fenced(argument, instructions=instructions)
    done = run.stdout.splitlines()[-1:]
    assert done == ["done"], f"{done}: {run.stderr}"


def test_an_out_of_bounds_read_is_detected():
    assert -fenced("overrun").returncode in {signal.SIGSEGV, signal.SIGBUS}
