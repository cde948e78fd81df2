"""Which backend is chosen on CUDA, and why, without a GPU: no number is read off a tensor."""

import pytest
import torch
from support.fake_cuda import gpu, gpu_problem

import regard
from regard.backends import choose

HALF, FLOAT = torch.bfloat16, torch.float32
HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)
CAUSAL = {"mask": regard.causal()}
WINDOW = {"mask": regard.causal() & regard.window(100)}
DOCUMENTS = {"mask": regard.documents(torch.arange(256) // 100)}
DENSE = {"mask": regard.dense(torch.ones(256, 256, dtype=torch.bool))}
BIAS = {"bias": torch.zeros(256)}
SINK = {"sink": torch.ones(4)}
OLD = "the GPU has compute capability 7.5, below 8.0"
ALIBI = {"alibi": torch.ones(4)}

CHOICES = [
    # dtype, compute capability, the problem, the choice, the objections to others
    (HALF, HOPPER, {}, "cudnn", {}),
    (HALF, HOPPER, CAUSAL, "cudnn", {}),
    (HALF, AMPERE, CAUSAL, "flash", {}),
    (torch.float16, AMPERE, CAUSAL, "flash", {}),
    (HALF, HOPPER, {"queries": 1, "keys": 999, **CAUSAL}, "flash", {}),
    (HALF, HOPPER, {"queries": 100, "keys": 999, **CAUSAL}, "flash", {"cudnn": "as many queries"}),
    (HALF, HOPPER, {"dim": 192, **CAUSAL}, "cudnn", {}),
    (HALF, AMPERE, {"dim": 192, "dim_value": 128}, "flash", {}),
    (
        HALF,
        HOPPER,
        {"dim": 300},
        "efficient",
        {"cudnn": "dimension 300 is above 256", "flash": "300 is above 256"},
    ),
    (FLOAT, HOPPER, CAUSAL, "efficient", {"cudnn": "float32", "flash": "float32"}),
    (FLOAT, HOPPER, {"mask": regard.causal(offset=0), "keys": 99}, "efficient", {}),
    (FLOAT, HOPPER, {"keys": 999, **CAUSAL}, "flex", {}),
    (
        HALF,
        HOPPER,
        {"keys": 99, **CAUSAL},
        "flex",
        {"flash": "whose last query sits at the last key"},
    ),
    (HALF, HOPPER, WINDOW, "flex", {"cudnn": "the only mask", "flash": "the only mask"}),
    (HALF, HOPPER, DOCUMENTS, "flex", {}),
    (FLOAT, TURING, DOCUMENTS, "efficient", {"flex": OLD}),
    (HALF, TURING, CAUSAL, "eager", {"flash": OLD, "efficient": OLD, "flex": OLD}),
    (HALF, HOPPER, DENSE, "efficient", {}),
    (HALF, HOPPER, {"bias": torch.zeros(256, dtype=HALF)}, "efficient", {}),
    (HALF, HOPPER, BIAS, "flex", {"efficient": "rounds one of torch.float32"}),
    (HALF, HOPPER, ALIBI, "flex", {"efficient": "rounds ALiBi", "flash": "adds no bias"}),
    (HALF, HOPPER, {"softcap": 2.0}, "flex", {"cudnn": "softcap=2.0", "efficient": "softcap"}),
    (HALF, HOPPER, SINK, "cudnn", {}),
    (HALF, HOPPER, {"trained": "sink", **SINK}, "flex", {"cudnn": "gradients through a sink"}),
    (HALF, HOPPER, {"trained": "bias", **BIAS}, "eager", {"flex": "detach it"}),
    (HALF, HOPPER, {"dropout": 0.5}, "eager", {"flash": "dropout=0.5", "flex": "dropout=0.5"}),
    (torch.float64, HOPPER, CAUSAL, "eager", {"flash": "float64", "flex": "float64"}),
    (HALF, HOPPER, {"is_finite": False}, "cudnn", {}),
    (HALF, HOPPER, {"is_finite": False, **CAUSAL}, "cudnn", {}),
    (
        HALF,
        HOPPER,
        {"is_finite": False, "check_finite": True, **CAUSAL},
        "eager",
        {"cudnn": "NaN", "flex": "NaN"},
    ),
]


@pytest.mark.parametrize(("dtype", "capability", "options", "name", "why"), CHOICES)
def test_choices_on_cuda(dtype, capability, options, name, why):
    with gpu(capability):
        choice = choose(gpu_problem(dtype, **options))
    assert choice.name == name
    objections = dict(choice.objections)
    assert name not in objections
    for other, reason in why.items():
        assert reason in objections[other]
        assert f"; not {other}: {objections[other]}" in str(choice)


PLAIN = [
    {},
    {"queries": 100, "keys": 100, **WINDOW},
    {"check_finite": True, "queries": 100, "keys": 100, **WINDOW, "is_finite": True},
    {"check_finite": True, "queries": 1, **CAUSAL},
]


READS = "it must read the numbers"


@pytest.mark.parametrize("options", PLAIN)
def test_choosing_reads_no_number_unasked_or_where_nothing_is_hidden_or_they_are_known(options):
    with gpu():
        choice = choose(gpu_problem(**{"is_finite": None, **options}))
        assert READS not in str(choice)


def test_numbers_are_looked_at_only_once_all_else_fits():
    with gpu():
        unknown = {"is_finite": None, "check_finite": True, "mask": regard.causal()}
        problem = gpu_problem(**unknown, softcap=2.0, dropout=0.5)
        choice = choose(problem)
        assert choice.name == "eager"
        assert READS not in str(choice)
        choice = choose(gpu_problem(**unknown))  # fake tensors hold none
        assert choice.name == "eager"
        assert READS in str(choice)


@pytest.mark.parametrize(
    ("which", "capability", "dim", "name"),
    [
        ("FA3", HOPPER, 128, "flash"),
        ("FA3", HOPPER, 256, "flash"),
        ("FA3", (10, 0), 128, "cudnn"),
        ("FA4", (10, 0), 128, "flash"),
        ("FA4", HOPPER, 256, "cudnn"),
        ("FA4", AMPERE, 128, "cudnn"),
        ("FA9", HOPPER, 128, "cudnn"),
    ],
)
def test_an_activated_flash_attention_comes_first_and_is_named(which, capability, dim, name):
    with gpu(capability, flash_attention=which):
        choice = choose(gpu_problem(dim=dim, **CAUSAL))
    assert choice.name == name
    if name == "flash":
        assert str(choice) == f"flash ({which}, experimental)"
    else:
        assert which in dict(choice.objections)["flash"]


def test_what_torch_has_activated_is_asked_of_torch(monkeypatch):
    from regard_experiments.gpu.fused import flash

    assert flash.activated() is None
    monkeypatch.setattr(
        torch.nn.attention, "current_flash_attention_impl", lambda: "FA3", raising=False
    )
    assert flash.activated() == "FA3"


@pytest.mark.parametrize(("dim", "name"), [(192, "flash"), (200, "efficient"), (256, "flash")])
def test_flash_gives_no_gradients_of_some_widths_on_small_gpus(dim, name):
    with gpu((8, 6), cudnn=0):
        assert choose(gpu_problem(dim=dim, **CAUSAL)).name == "flash"
        choice = choose(gpu_problem(dim=dim, trained="query", **CAUSAL))
        assert choice.name == name
        if name == "efficient":
            objections = dict(choice.objections)
            assert "gradients of head dimension 200 are not supported" in objections["flash"]
            assert "needs cuDNN 9" in objections["cudnn"]


def test_cudnn_gives_way_where_torch_is_to_be_deterministic(monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with gpu():
        assert choose(gpu_problem(**CAUSAL)).name == "cudnn"
        choice = choose(gpu_problem(trained="query", **CAUSAL))
    assert choice.name == "flash"
    assert "not deterministic" in dict(choice.objections)["cudnn"]


def test_without_triton_masks_are_written_down():
    with gpu(triton=False):
        choice = choose(gpu_problem(**DOCUMENTS))
        assert choice.name == "efficient"
        assert dict(choice.objections)["flex"] == "there is no Triton"


@pytest.mark.parametrize("name", ["flash", "cudnn", "efficient", "flex"])
def test_they_object_to_a_cpu_and_to_rocm(name, monkeypatch):
    x = torch.zeros(1, 2, 5, 8, dtype=torch.bfloat16)
    why = f"query is on cpu but {name} needs CUDA"
    message = f"backend='{name}' cannot run this: {why}. Use backend='eager'."
    with pytest.raises(ValueError, match=message):
        regard.attention(x, x, x, backend=name)
    with gpu():
        problem = gpu_problem()
        monkeypatch.setattr(torch.version, "hip", "6.4")
        choice = choose(problem)
        assert str(choice) == "torch_sdpa"
        with pytest.raises(ValueError, match="ROCm"):
            choose(problem, name)


def test_the_kernels_of_a_cpu_object_to_cuda():
    with gpu(), pytest.raises(ValueError, match="query is on cuda"):
        choose(gpu_problem(), "native")
