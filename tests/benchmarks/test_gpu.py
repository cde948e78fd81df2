"""The GPU's benchmark tries every part out on a CPU, checks results, and says what fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.fake_cuda import flex_on_cpu
from support.triton_device import kernels

import regard
from benchmarks import gpu, gpu_checks, gpu_peers
from benchmarks.cases import Case
from benchmarks.gpu_result import Result

ROOT = Path(__file__).parents[2]
CAUSAL = {"mask": regard.causal()}


def test_eager_takes_the_same_readouts():
    query, key = torch.randn(2, 4, 67, 16), torch.randn(2, 2, 67, 16)
    actual = gpu_peers.eager_readouts(query, key)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    for name, readout in gpu_checks.READOUTS.items():
        (expected,) = pattern.read(readout)
        expected = expected.weights if name == "top 8" else expected
        expected = expected[..., :64] if name == "offsets 64" else expected
        # Distances go up to 66.
        torch.testing.assert_close(actual[name], expected, rtol=1e-5, atol=1e-5, msg=name)


def test_every_other_way_gives_what_keys_receive():
    pytest.importorskip("triton")
    query, key = torch.randn(1, 4, 67, 16), torch.randn(1, 2, 67, 16)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    with flex_on_cpu():
        ways = gpu_peers.peers(query, key, pattern.logsumexp)
        assert len(ways) == 4
        for name, way in ways.items():
            # Sums of up to 67 weights near 1.
            torch.testing.assert_close(way(), pattern.received(), rtol=1e-5, atol=1e-5, msg=name)


def test_the_weights_that_a_shape_counts_are_the_visible_ones():
    shape = Case(batch=2, heads=3, groups=1, length=7, dim=4)
    assert shape.visible == regard.causal().visible(7, 7, (2, 3)).sum()
    assert shape.elements == 2 * 3 * 7 * 4 + 2 * 1 * 7 * 4


@pytest.mark.thorough
def test_every_comparison_passes_and_a_wrong_result_is_reported(monkeypatch, tmp_path, capsys):
    pytest.importorskip("triton")
    for name, size in {"H": 2, "G": 1, "L": 37, "S": 41}.items():
        monkeypatch.setattr(gpu_checks, name, size)
    small = {
        "received": regard.readouts.Received(),
        "entropy": regard.readouts.Entropy(),
        "top 8": regard.readouts.TopK(3),
    }
    monkeypatch.setattr(gpu_checks, "READOUTS", small)
    monkeypatch.setattr(gpu_checks, "further", lambda keys: {"lag 1": regard.readouts.Lag(1)})
    monkeypatch.setattr(gpu_checks, "DIVERGENCES", ("js",))
    monkeypatch.setattr(gpu_checks, "ROWS", slice(3, 5))
    result = Result(tmp_path, torch.device("cpu"), 60.0)

    def compare():
        with result.part("checks"):
            result.table("a table", "what", "comparisons", "largest error ÷ allowed")
            gpu_checks._compare(result, "float32", torch.float32, 16, "cpu")
        return json.loads((tmp_path / "gpu.json").read_text())["parts"]["checks"]

    with kernels():
        part = compare()
        ((_, number, largest),) = part["tables"][0]["rows"]
        assert number > 20
        assert largest <= 1
        assert part["failed"] == []
        monkeypatch.setattr(gpu_checks, "_options", lambda device: {"causal": CAUSAL})
        given = regard.readouts.Entropy.from_kernel
        monkeypatch.setattr(
            regard.readouts.Entropy, "from_kernel", lambda self, *a: given(self, *a) * (1 + 1e-4)
        )
        assert "float32, causal, readouts: off by" in compare()["failed"][0]
    assert "FAILED float32, causal, readouts: off by" in capsys.readouterr().err
    assert result.failures[0].startswith("checks: float32, causal")


def test_a_failing_row_is_told_at_once_and_the_rows_after_it_are_a_result(tmp_path, capsys):
    result = Result(tmp_path, torch.device("cpu"), 60.0)
    with result.part("readouts"):
        result.table("a table", "what", "ms", "÷ flash")
        with result.attempt("first"):
            raise RuntimeError("no kernel image\nand more")
        assert (
            "FAILED first: RuntimeError: no kernel image (test_gpu.py:" in capsys.readouterr().err
        )
        result.row("second", 1234.5, result.at_most("second", 0.7, 0.6))
    result = Result(tmp_path, torch.device("cpu"), 0.0)  # a further run into the same folder
    with result.part("memory"):
        assert not result.has_time("third")
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts["readouts"]["missed"] == ["second: 0.70, not ≤ 0.6"]
    assert parts["memory"]["left out"] == ["third: the 0 s of this part are over"]
    assert len(result.failures) == 1
    written = (tmp_path / "gpu.md").read_text()
    assert (
        "| what | ms | ÷ flash |\n| --- | ---: | ---: |\n| second | 1,234 | 0.70 ≤ 0.6 ✗ |"
        in written
    )
    assert "- failed: first: RuntimeError: no kernel image" in written


@pytest.mark.thorough
def test_every_part_but_the_comparisons_runs_at_tiny_sizes(tmp_path):
    pytest.importorskip("triton")
    parts = ("readouts", "memory", "training", "generation")
    options = ("--tiny", "--device", "cpu", "--out", tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *parts, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    content = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [(name, part["failed"]) for name, part in content.items()] == [(n, []) for n in parts]
    rows = {name: sum(len(t["rows"]) for t in part["tables"]) for name, part in content.items()}
    assert min(rows.values()) >= 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_without_a_gpu_it_exits_with_the_reason(monkeypatch):
    monkeypatch.setattr("sys.argv", ["gpu"])
    reason = "this measures a GPU, and torch finds none that it can use through CUDA"
    with pytest.raises(SystemExit, match=f"^{reason}$"):
        gpu.main()
