"""A GPU's kernel computes a small problem first, and is refused where that comes out wrong."""

import threading

import pytest
import torch
from support.draws import normal
from support.fake_cuda import documented_kernels, flex_on_cpu, gpu, gpu_problem
from support.triton_device import kernels

import regard
from regard.backends import choice, choose
from regard.errors import Error
from regard_experiments.gpu import self_check, triton
from regard_experiments.gpu.fused import cudnn, efficient, flash

FUSED = {"flash": flash, "cudnn": cudnn, "efficient": efficient}
OFF = r"in a self-check on cpu its context is off by [0-9.]+, more than 0\.02"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(self_check, "_results", {})


def tensors():
    return [normal(1, 2, 200, 64, seed=seed, dtype=torch.bfloat16) for seed in range(3)]


def counted(monkeypatch, module, change=lambda context: context):
    """Change a backend's context; return the list of the numbers of queries that it is run with."""
    run, queries = module.run, []

    def changed(problem):
        queries.append(problem.queries)
        context, logsumexp = run(problem)
        return change(context), logsumexp

    monkeypatch.setattr(module, "run", changed)
    return queries


@pytest.mark.parametrize("name", FUSED)
def test_a_right_kernel_is_checked_once_with_a_small_problem(name, monkeypatch):
    queries = counted(monkeypatch, FUSED[name])
    with documented_kernels(checked=True):
        for _ in range(2):
            regard.attention(*tensors(), mask=regard.causal(), backend=name)
    assert queries == [self_check._TOKENS, 200, 200]
    assert self_check._TOKENS <= 64


def test_flex_passes_its_check():
    with flex_on_cpu(checked=True):
        for dtype in (torch.bfloat16, torch.float32):
            regard.attention(*(t.to(dtype) for t in tensors()), backend="flex")
    assert list(self_check._results.values()) == [None, None]


@pytest.mark.parametrize("name", FUSED)
def test_a_wrong_kernel_that_is_named_is_an_error(name, monkeypatch):
    queries = counted(monkeypatch, FUSED[name], lambda context: context * 1.5)
    message = rf"backend='{name}' cannot run this: {OFF}\. Use backend='eager'\."
    with documented_kernels(checked=True):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                regard.attention(*tensors(), backend=name)
        assert queries == [self_check._TOKENS]
        problem = regard.inputs.check(*tensors())
        assert (
            choose(problem, name).name == name
        )  # which computes nothing, and stays a pure function
    assert queries == [self_check._TOKENS]


def test_another_backend_takes_over_from_a_wrong_kernel_and_says_so(monkeypatch):
    counted(monkeypatch, flash, lambda context: context.roll(1, -2))
    monkeypatch.setattr(choice, "_preferred", lambda problem: (("flash", "eager"), []))
    with (
        documented_kernels(checked=True),
        pytest.warns(RuntimeWarning, match=f"attention is computed by eager; not flash: {OFF}"),
    ):
        context, _ = regard.attention_with_pattern(*tensors())
    assert torch.equal(context, regard.attention(*tensors(), backend="eager"))


def test_a_kernel_that_fails_is_refused_with_its_error(monkeypatch):
    def failing(problem):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(flash, "run", failing)
    message = "on cpu it fails with RuntimeError: no kernel image is available. Use backend='eager'"
    with documented_kernels(checked=True), pytest.raises(ValueError, match=message):
        regard.attention(*tensors(), backend="flash")


def test_without_memory_nothing_is_learnt_of_a_kernel(monkeypatch):
    def full(problem):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(flash, "run", full)
    with documented_kernels(checked=True), pytest.raises(torch.OutOfMemoryError):
        regard.attention(*tensors(), backend="flash")
    assert self_check._results == {}


def test_threads_share_one_check(monkeypatch):
    queries = counted(monkeypatch, flash)
    problem = regard.inputs.check(*tensors())
    with documented_kernels(checked=True):
        threads = [
            threading.Thread(target=choice.choose_checked, args=(problem, "flash"))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert queries == [self_check._TOKENS]


def test_tensors_without_numbers_are_not_checked():
    with gpu():
        assert choice.choose_checked(gpu_problem()).name == "cudnn"
    assert self_check._results == {}


def test_a_wrong_readout_is_refused_and_a_right_one_is_checked_once(monkeypatch):
    pytest.importorskip("triton")
    from regard_experiments.gpu.triton import _read, _self_check

    read_all, lengths = _read.read_all, []

    def halved(problem, specs, *rest):
        lengths.append(problem.queries)
        return [(result[0] / 2, *result[1:]) for result in read_all(problem, specs, *rest)]

    def noted(problem, specs, *rest):
        lengths.append(problem.queries)
        return read_all(problem, specs, *rest)

    problem = regard.inputs.check(*(t[..., :5, :] for t in tensors()))
    weights = torch.eye(48).expand(2, -1, -1).double()
    every = _self_check._cases(weights, weights, weights, torch.zeros(2, 48))
    received = [every[triton.Kind.RECEIVED][0]]
    with kernels():
        monkeypatch.setattr(_self_check, "read_all", noted)
        for _ in range(2):
            triton.read(problem, received, None, None)
        assert lengths == [self_check._TOKENS]
        assert _self_check.failure(problem, list(every)) is None  # each kind, and all together
        monkeypatch.setattr(_self_check, "read_all", halved)
        message = "readout max is off by .* more than 0.0001. Read a copy: pattern.to\\('cpu'\\)"
        with pytest.raises(
            Error, match=f"by Triton cannot run: in a self-check on cpu its {message}"
        ):
            triton.read(problem, [every[triton.Kind.MAX][0]], None, None)


def test_a_wrong_divergence_is_refused_and_a_right_one_is_checked_once(monkeypatch):
    pytest.importorskip("triton")
    from regard_experiments.gpu.triton import _compare, _self_check

    compare_all = _compare.compare_all
    problem = regard.inputs.check(*(t[..., :5, :] for t in tensors()))
    known = torch.zeros(2, 5)
    with kernels():
        for _ in range(2):
            assert triton.compare(problem, problem, (known, known), "js").shape == (2, 5)
        assert list(self_check._results.values()) == [None]
        monkeypatch.setattr(_self_check, "compare_all", lambda *given: compare_all(*given) / 2)
        with pytest.raises(
            Error, match=r"its divergence tv is off by .* more than 0.0001. Compare"
        ):
            triton.compare(problem, problem, (known, known), "tv")
