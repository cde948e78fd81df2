"""Which backend is chosen, and the reasons it gives."""

import itertools

import pytest
import torch
from support.cpu_paths import ON_CPU

import regard
from regard.backends import choose
from regard.backends.native import library
from regard.inputs import Scoring, check


def problem(dtype=torch.float32, lead=(2, 4), dim=8, dim_value=3, dropout=0.0, **options):
    query, key = torch.randn(*lead, 5, dim).to(dtype), torch.randn(*lead, 7, dim).to(dtype)
    value = torch.randn(*lead, 7, dim_value).to(dtype)
    return check(query, key, value, Scoring(**options), dropout=dropout)


OPTIONS = [
    {},
    {"mask": regard.causal()},
    {"mask": regard.causal() & regard.window(2)},
    {"mask": regard.dense(torch.rand(5, 7) < 0.5)},
    {"bias": torch.zeros(5, 7)},
    {"alibi": torch.ones(4)},
    {"sink": torch.ones(4)},
    {"scale": 3.0},
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def no_library(monkeypatch):
    """A pure Python install, as `_library` describes it."""
    monkeypatch.setattr(library, "why_missing", lambda: "there is none")


@pytest.mark.parametrize(("options", "dtype"), [*itertools.product(OPTIONS, DTYPES)])
def test_the_native_kernels_are_used_wherever_they_apply(options, dtype):
    for more in ({}, {"softcap": 2.0}, {"dropout": 0.25}, {"dim": 0}, {"dim_value": 0}):
        assert str(choose(problem(dtype, **options, **more))) == "native"


NATIVE_OBJECTIONS = [
    ({"dtype": torch.float64}, "query is torch.float64, which only the written-out"),
    ({"dim": 257}, "it takes head dimensions of at most 256"),
    ({"dim_value": 257}, "it takes head dimensions of at most 256"),
]


@pytest.mark.parametrize(("options", "why"), NATIVE_OBJECTIONS)
def test_the_native_kernels_name_what_they_cannot_compute(options, why):
    choice = choose(problem(**options))
    assert choice.name != "native"
    assert f"not native: {why}" in str(choice)
    with pytest.raises(ValueError, match=f"backend='native' cannot run this: {why}"):
        choose(problem(**options), "native")


@pytest.mark.parametrize(("options", "dtype"), [*itertools.product(OPTIONS, DTYPES)])
def test_without_the_library_torch_is_used_wherever_it_applies(options, dtype, no_library):
    assert str(choose(problem(dtype, **options))) == "torch_sdpa; not native: there is none"


OBJECTIONS = [
    ({"dtype": torch.float64}, "query is torch.float64, not torch.float32, torch.bfloat16 or"),
    ({"dim": 0}, "a head dimension is 0"),
    ({"dim_value": 0}, "a head dimension is 0"),
    ({"softcap": 2.0}, "softcap=2.0 is not supported; leave it out"),
    ({"dropout": 0.25}, "dropout=0.25 would not be reproducible; set it to 0"),
    ({"bias": torch.zeros(5, 7, requires_grad=True)}, "gradient of mask or bias is not supported"),
    (
        {"mask": regard.dense(torch.zeros(5, 7, requires_grad=True))},
        "gradient of mask or bias is not supported; detach it",
    ),
    ({"alibi": torch.ones(4, requires_grad=True)}, "gradient of alibi is not supported; detach it"),
    (
        {"sink": torch.ones(4, requires_grad=True)},
        r"gradients through a sink are not supported; compute under torch.no_grad\(\)",
    ),
]


@pytest.mark.parametrize(("options", "why"), OBJECTIONS)
def test_what_torch_sdpa_cannot_compute_goes_to_eager_with_a_reason(options, why, no_library):
    choice = choose(problem(**options))
    assert choice.name == "eager"
    [native, (name, objection)] = choice.objections
    assert native == ("native", "there is none")
    assert name == "torch_sdpa"
    assert str(choice) == f"eager; not native: there is none; not torch_sdpa: {objection}"
    with pytest.raises(
        ValueError, match=f"backend='torch_sdpa' cannot run this: .*{why}.* Use backend='eager'."
    ):
        choose(problem(**options), "torch_sdpa")


@pytest.mark.parametrize("extreme", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_without_the_library_nonfinite_values_go_to_eager(which, extreme, no_library):
    tensors = {"query": torch.randn(5, 8), "key": torch.randn(7, 8), "value": torch.randn(7, 3)}
    tensors[which][2, 1] = extreme
    choice = choose(check(**tensors))
    assert choice.name == "eager"
    assert "NaN, infinity" in str(choice)


def test_gradients_are_an_objection_only_where_they_may_be_needed(no_library):
    options = {"alibi": torch.ones(4, requires_grad=True), "sink": torch.ones(4)}
    case = problem(**options)
    assert choose(case).name == "eager"
    with torch.no_grad():
        assert choose(case).name == "torch_sdpa"


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_backend_by_name_is_that_one(backend):
    choice = choose(problem(), backend)
    assert (choice.name, choice.objections) == (backend, ())
    assert str(choice) == backend


def test_an_unknown_name_is_refused():
    message = r"backend is 'fused', but must be None or one of \('native', 'torch_sdpa', 'eager'"
    with pytest.raises(ValueError, match=message):
        choose(problem(), "fused")
    x = torch.randn(5, 3)
    with pytest.raises(ValueError, match=message):
        regard.attention(x, x, x, backend="fused")


def test_choosing_has_no_side_effects():
    case = problem(sink=torch.ones(4))
    before = [t.clone() for t in (case.query, case.key, case.value)]
    assert choose(case) == choose(case)
    for tensor, old in zip((case.query, case.key, case.value), before, strict=True):
        assert torch.equal(tensor, old)
