"""Devices of extensions: with an extension installed, and without."""

from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
import torch
from support import fake_gpu
from support.draws import normal
from support.extensions import installed, without_extensions
from support.fake_cuda import gpu, gpu_problem
from support.processes import run_script

import regard
from regard.backends import choose, choose_checked, extensions, native, reader_of
from regard.backends.extensions import Backend, DeviceReader, Extension
from regard.inputs import Scoring, check

CUDA = torch.device("cuda")
CAUSAL = {"mask": regard.causal()}
MISSING = (
    "the fused backends 'flash', 'cudnn', 'efficient' and 'flex'",
    "regard-experiments, which brings them, is not installed: pip install",
)
READER = [name for name in dir(DeviceReader) if not name.startswith("_")]
MASKS = [regard.causal(), regard.causal() & regard.window(5), regard.Mask()]


def an_extension(*, failure=None):
    """An extension with one backend, which computes as `eager` does twice over."""

    def run(problem):
        context, logsumexp = native.run(problem)
        return 2 * context, logsumexp

    return SimpleNamespace(
        backends={"twice": SimpleNamespace(objection=lambda problem: None, run=run)},
        reader=SimpleNamespace(**dict.fromkeys(READER, lambda *arguments: "it reads nothing")),
        preferred=lambda problem: ("twice", "torch_sdpa", "eager"),
        failure=lambda name, problem: failure,
        version=lambda name: "V1",
        facts=lambda: [("kernels", "two")],
    )


def test_without_an_extension_torch_computes_and_the_choice_says_what_is_missing():
    with without_extensions(), gpu():
        choice = choose(gpu_problem(**CAUSAL))
        assert choice.name == "torch_sdpa"
        [(name, why)] = choice.objections
        assert name == MISSING[0]
        assert why.startswith(MISSING[1])
        choice = choose(gpu_problem(**CAUSAL, sink=torch.ones(4)))
        assert choice.name == "eager"
        assert [name for name, _ in choice.objections] == [MISSING[0], "torch_sdpa"]
        assert reader_of(CUDA) is native


def test_without_an_extension_its_backend_s_name_is_an_error_with_the_cure():
    x = torch.randn(1, 2, 5, 8)
    with without_extensions(), pytest.raises(ValueError, match=f"backend is 'flash'.*{MISSING[1]}"):
        regard.attention(x, x, x, backend="flash")


@pytest.mark.each_once
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [None, -0.5, 0.0])
def test_without_an_extension_a_gpu_gives_what_a_cpu_gives(mask, scale):
    tensors = [normal(1, 2, 37, 8, seed=seed) for seed in range(3)]
    options = {"mask": mask, "scale": scale}
    expected, pattern = regard.attention_with_pattern(*tensors, **options)
    with without_extensions(), fake_gpu.gpu():
        there = [tensor.to(CUDA) for tensor in tensors]
        context, read = regard.attention_with_pattern(*there, **options)
        context, entropy, divergence = (
            tensor.cpu() for tensor in (context, read.entropy(), read.divergence(read))
        )
    # Two kernels' float32: 37 terms each, of numbers around 1.
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, pattern.entropy(), rtol=0, atol=1e-5)
    assert not divergence.any()


def test_the_choice_reads_no_values_on_a_gpu():
    with without_extensions(), gpu():
        assert choose(gpu_problem(is_finite=None, **CAUSAL)).name == "torch_sdpa"
        choice = choose(gpu_problem(is_finite=None, check_finite=True, **CAUSAL))
        assert choice.name == "eager"


def test_an_extension_is_imported_at_the_first_use_of_its_device_or_names():
    x = torch.randn(1, 2, 5, 8)
    problem = check(x, x, x, Scoring(**CAUSAL))
    with installed(cuda=an_extension(), other=an_extension()) as imported:
        assert choose(problem).name == "native"
        choose(problem, "eager")
        assert reader_of(torch.device("cpu")) is native
        assert imported == []
        with gpu():
            for _ in range(2):
                choice = choose_checked(gpu_problem(**CAUSAL))
                assert (choice.label, choice.objections) == ("twice (V1, experimental)", ())
        assert imported == ["cuda"]
        assert reader_of(CUDA) is extensions.extension_of(CUDA).reader
        context = regard.attention(x, x, x, backend="twice")
        assert imported == ["cuda"]
        with pytest.raises(ValueError, match=r"one of \('native', .*'twice'.*\)$"):
            choose(problem, "thrice")
        assert imported == ["cuda", "other"]
    assert torch.equal(context, 2 * regard.attention(x, x, x, backend="native"))


def test_another_backend_takes_over_from_one_that_fails_its_self_check():
    with installed(cuda=an_extension(failure="it is off")), gpu():
        with pytest.warns(RuntimeWarning, match="by torch_sdpa; not twice: it is off"):
            assert choose_checked(gpu_problem(**CAUSAL)).name == "torch_sdpa"
        with pytest.raises(ValueError, match="backend='twice' cannot run this: it is off"):
            choose_checked(gpu_problem(**CAUSAL), "twice")


def test_what_is_installed_here_is_an_extension():
    [point] = entry_points(group=extensions.GROUP, name="cuda")
    extension = point.load()
    assert isinstance(extension, Extension)
    assert all(isinstance(backend, Backend) for backend in extension.backends.values())
    assert all(f"'{name}'" in MISSING[0] for name in extension.backends)


def test_importing_and_computing_on_a_cpu_import_no_extension():
    script = """
import sys
import torch
import regard
x = torch.randn(2, 5, 8)
regard.attention_with_pattern(x, x, x, mask=regard.causal())[1].entropy()
print(any(name.startswith("regard_experiments") for name in sys.modules))
"""
    assert run_script(script).split() == ["False"]


def test_entry_points_are_read_once_for_a_type_of_device(monkeypatch):
    with without_extensions(), gpu():
        choose(gpu_problem(**CAUSAL))

        def read_again(**_options):
            raise AssertionError("entry points take milliseconds to read")

        monkeypatch.setattr(extensions, "entry_points", read_again)
        assert choose(gpu_problem(**CAUSAL)).name == "torch_sdpa"
