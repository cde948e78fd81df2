"""The Triton kernels compile for GPUs, which need not be there; and how they come out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard_experiments.gpu import hardware

pytestmark = pytest.mark.thorough

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[2] / "support" / "compiling.py"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What was compiled, in a process of its own: here Triton interprets."""
    place = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, str(SCRIPT)]
    run = subprocess.run(
        command, env=os.environ | place, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def test_the_required_version_is_the_one_that_the_project_declares():
    declared = (ROOT / "experiments" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{hardware.TRITON};' in declared
    assert declared.count("triton>") == 1


def test_every_kernel_compiles(compiled):
    kernels = {each["kernel"] for each in compiled}
    assert kernels == {
        *("read_logsumexp", "read_rows", "read_columns", "read_diagonals", "read_slices", "fold"),
        *("read_span_sums", "read_block_maxima", "read_divergence"),
    }


def test_scores_are_computed_by_the_matrix_units_while_keys_are_on_their_way(compiled):
    for each in compiled:
        if each["loops"] and each["name"] in {"plain", "all readouts"}:
            assert each["products"] == each["loops"] * ["warp_group_dot"], each
            assert each["copies"] > 0, each


def test_tiles_fit_the_memory_of_a_processor(compiled):
    for each in compiled:
        assert each["shared"] <= each["room"], each
