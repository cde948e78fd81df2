"""The GPU's benchmark compares the same readouts, checks them, and says where it can't run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.triton_device import kernels

import regard
from benchmarks import gpu, gpu_checks
from benchmarks.cases import Case

ROOT = Path(__file__).parents[2]


def test_eager_takes_the_same_readouts():
    query, key = torch.randn(2, 4, 67, 16), torch.randn(2, 2, 67, 16)
    actual = gpu.eager_readouts(query, key)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    for name, readout in gpu_checks.READOUTS.items():
        (expected,) = pattern.read(readout)
        expected = expected.weights if name == "top 8" else expected
        expected = expected[..., :64] if name == "offsets 64" else expected
        # Distances go up to 66.
        torch.testing.assert_close(actual[name], expected, rtol=1e-5, atol=1e-5, msg=name)


def test_the_weights_that_a_shape_counts_are_the_visible_ones():
    shape = Case(batch=2, heads=3, groups=1, length=7, dim=4)
    assert shape.visible == regard.causal().visible(7, 7, (2, 3)).sum()
    assert shape.elements == 2 * 3 * 7 * 4 + 2 * 1 * 7 * 4


def test_every_check_passes_and_a_wrong_result_is_reported(monkeypatch):
    pytest.importorskip("triton")
    for name, size in {"H": 2, "G": 1, "L": 37, "S": 41}.items():
        monkeypatch.setattr(gpu_checks, name, size)
    small = {"received": regard.Received(), "entropy": regard.Entropy(), "top 8": regard.TopK(3)}
    monkeypatch.setattr(gpu_checks, "READOUTS", small)
    monkeypatch.setattr(gpu_checks, "DTYPES", (torch.float32,))
    monkeypatch.setattr(gpu_checks, "ROWS", slice(3, 5))
    with kernels():
        actual = list(gpu_checks.checks("cpu"))
        assert len(actual) > 20
        assert all(error <= allowed for _, error, allowed in actual)
        given = regard.Entropy.from_kernel
        monkeypatch.setattr(
            regard.Entropy, "from_kernel", lambda self, *a: given(self, *a) * (1 + 1e-4)
        )
        error, allowed = next((e, a) for name, e, a in gpu_checks.checks("cpu") if "causal" in name)
        assert error > allowed


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_without_a_gpu_it_exits_with_the_reason():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "this measures a GPU, and torch finds none that it can use through CUDA"
    ]
