"""Memory in huge pages: ordinary tensors, wherever they lie."""

import copy
import mmap

import pytest
import torch

from regard import _huge_pages
from regard.gpt import GPT, GPTConfig
from regard.gpt.model_files import to_huge_pages

KINDS = (((3, 700_001), torch.float32), ((0, 5), torch.float32), ((7, 11), torch.bfloat16))
LARGE = GPTConfig(vocab_size=5003, context=17, layers=2, heads=3, dim=129)


@pytest.fixture(params=["huge", "without"])
def pages(request, monkeypatch):
    """With huge pages where the system has them, and without."""
    if request.param == "without":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    elif not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("the system has no such advice")
    return request.param


def test_tensors_have_shapes_dtypes_and_storages_of_their_own(pages):
    tensors = _huge_pages.allocate(*KINDS)
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, KINDS, strict=True)):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert tensor.is_contiguous()
        assert not tensor._is_view()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(number)
    assert (tensors[0] == 0).all()
    assert (tensors[2] == 2).all()
    if pages == "huge":
        assert tensors[0].data_ptr() % 2**21 == 0
    last = tensors.pop()
    del tensors, tensor  # the memory stays while one of them does
    assert (last == 2).all()


def test_a_refusal_of_the_system_changes_nothing(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 10_007, raising=False)  # no such advice
    large, _, _ = _huge_pages.allocate(*KINDS)
    assert large.fill_(1).sum() == large.numel()


def test_weights_stay_what_they_are(pages):
    model = GPT(LARGE)
    parameters, before = list(model.parameters()), copy.deepcopy(model.state_dict())
    to_huge_pages(model)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    model(torch.tensor([3, 1, 4])).sum().backward()
    assert all(parameter.grad is not None for parameter in parameters)


def test_small_tensors_do_not_keep_the_memory_of_large_ones():
    _, _, small = _huge_pages.allocate(*KINDS)
    assert small.untyped_storage().resizable()  # torch's own memory
