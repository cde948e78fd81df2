"""What `regard doctor` says of a GPU, on a machine without one."""

import pytest
import torch
from support.extensions import without_extensions
from support.fake_cuda import gpu

from regard.backends.native import Description
from regard.inputs import Problem


def table(done):
    """The printed table as one line: the backend of each problem, and why not the others."""
    assert (done.status, done.err) == (0, "")
    return " ".join(done.out.split())


def test_without_a_gpu(regard, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = table(regard("doctor"))
    assert "GPU none that torch can use through CUDA" in out
    assert "on CUDA" not in out


def test_a_path_stays_whole_in_a_pipe(regard, monkeypatch):
    path = "/a/folder/whose/name/is/longer/than/a/line/of/the/terminal" * 3
    found = Description(path, "avx2", ("avx2",), ("avx2",), "")
    monkeypatch.setattr("regard.backends.native.describe", lambda: found)
    assert path in regard("doctor").out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_the_terminal(regard, monkeypatch, width):
    found = Description("/lib/r.so", "avx512", ("avx2", "avx512"), ("avx2", "avx512"), "/lib/g.so")
    monkeypatch.setattr("regard.backends.native.describe", lambda: found)
    monkeypatch.setenv("COLUMNS", str(width))
    done = regard("doctor")
    assert "not native" in done.out  # the longest lines
    assert max(map(len, done.out.splitlines())) <= width


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A name")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(Problem, "is_finite", True)  # the tensors hold no numbers


def test_on_a_gpu(regard, one_gpu):
    with gpu((9, 0), flash_attention="FA3"):
        out = table(regard("doctor"))
    assert "GPU A name, compute capability 9.0" in out
    assert "bfloat16 on CUDA flash (FA3, experimental) it honours every argument" in out
    assert "float32 on CUDA efficient (experimental) not flash: query is torch.float32" in out
    assert "float64 on CUDA eager" in out
    assert "GPU kernels experimental: checked on first use" in out
    assert "a sliding window on CUDA flex" in out
    assert "a softcap on CUDA flex" in out


@pytest.mark.parametrize(
    ("triton", "message"),
    [
        (True, "GPU readouts by Triton"),
        (False, "GPU readouts by torch, in chunks; not by Triton: there is no Triton"),
    ],
)
def test_the_backend_of_readouts_on_a_gpu(regard, one_gpu, triton, message):
    with gpu(triton=triton):
        assert message in table(regard("doctor"))


def test_what_brings_kernels_for_a_gpu_is_named_where_it_is_missing(regard, one_gpu):
    with without_extensions(), gpu():
        out = table(regard("doctor"))
    assert "GPU A name, compute capability 9.0 GPU kernels torch's choice" in out
    assert "which brings them, is not installed: pip install" in out
    assert "bfloat16 on CUDA torch_sdpa not the fused backends" in out
    assert "float64 on CUDA eager" in out
