"""Memory that the updates of a training run reuse."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regard import _huge_pages
from regard.backends import native
from regard.gpt import GPT, GPTConfig
from regard.gpt._memory_pool import MemoryPool, allocate, scratch
from regard.gpt.training.batches import Batch
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.optimizer import make_optimizer
from regard.gpt.training.parallel import SingleProcess
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.train_step import TrainStep

kernels = pytest.mark.skipif(native.why_missing() is not None, reason="there is no kernel")

KINDS = (((3, 70_001), torch.float32), ((7, 11), torch.bfloat16), ((2, 1, 13), torch.float32))
LARGE = ((2_000_003,), torch.float32)  # more than any of the gaps that `KINDS` leaves
IDS = torch.arange(5 * 11).reshape(5, 11) * 7 % 29


@pytest.fixture
def regions(monkeypatch):
    """How many bytes the system was asked for, each time."""
    sizes, real = [], _huge_pages.allocate
    monkeypatch.setattr("regard.gpt._memory_pool._MIN_REGION_BYTES", 4096)
    monkeypatch.setattr(_huge_pages, "allocate", lambda kind: sizes.append(*kind[0]) or real(kind))
    return sizes


def test_tensors_are_like_any_other():
    tensors = MemoryPool().allocate(*KINDS)  # which keep the memory when the pool is gone
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, KINDS, strict=True)):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert tensor.is_contiguous()
        assert not tensor._is_view()
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))


def test_memory_is_taken_again_when_none_of_its_tensors_is_left(regions):
    pool = MemoryPool()
    first = pool.allocate(*KINDS)
    place = first[0].data_ptr()
    kept = first[1].view(-1)[3:].fill_(3)
    del first
    second = pool.allocate(*KINDS)
    assert second[0].data_ptr() != place
    second[1].fill_(5)
    assert (kept == 3).all()
    del kept
    assert pool.allocate(*KINDS)[0].data_ptr() == place
    assert len(regions) == 2


def test_freed_memory_beside_freed_memory_is_one_piece(regions):
    pool = MemoryPool()
    del pool.allocate(LARGE)[0]
    parts = [pool.allocate(((n,), torch.float32)) for n in (1_000_000, 1_000, 999_000)]
    del parts[1], parts[0], parts[0]
    pool.allocate(LARGE)
    assert len(regions) == 1


def test_regions_are_joined_when_nothing_is_in_use(regions):
    pool = MemoryPool()
    for _ in range(5):
        kept = [pool.allocate(kind) for kind in (KINDS[0], KINDS[1], LARGE)]
        del kept[0]
        kept.append(pool.allocate(LARGE))  # larger than what went
        kept.clear()
    # Four in the first round; in the second one of what was used at most, and one for what its gap
    # is too small for; from the third on one for both.
    assert len(regions) == 4 + 2 + 1


def test_an_interrupt_while_regions_are_joined_leaves_no_freed_memory(regions):
    class Interrupted(list):
        def clear(self):
            super().clear()
            raise KeyboardInterrupt

    pool = MemoryPool()
    kept = [pool.allocate(kind) for kind in (KINDS[0], LARGE)]
    kept.clear()
    pool._regions = Interrupted(pool._regions)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(KINDS[1])
    before = len(regions)
    pool.allocate(KINDS[1])
    assert len(regions) == before + 1


def test_memory_that_the_system_refuses_is_not_counted_as_used(regions, monkeypatch):
    pool = MemoryPool()
    kept = [pool.allocate(kind) for kind in (KINDS[0], LARGE)]
    with monkeypatch.context() as patch:
        patch.setattr(_huge_pages, "allocate", lambda kind: torch.empty(2**60))
        with pytest.raises(RuntimeError):
            pool.allocate(LARGE)
    kept.clear()
    pool.allocate(KINDS[1])
    assert len(pool._regions) == 1  # joined, since nothing was in use


def test_one_thread_at_a_time_changes_a_pool(monkeypatch):
    pool, locked = MemoryPool(), []
    take = pool._take

    def taken(size):
        locked.append(pool._lock.locked())
        return take(size)

    monkeypatch.setattr(pool, "_take", taken)

    def allocated(value):
        for _ in range(50):
            tensors = [tensor.fill_(value) for tensor in pool.allocate(*KINDS)]
            assert all(bool((tensor == value).all()) for tensor in tensors)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(allocated, range(3)))
    assert locked == [True] * 150


def test_a_copy_of_a_pool_has_memory_of_its_own():
    pool = MemoryPool()
    pool.allocate(*KINDS)
    other = copy.deepcopy(pool)
    (mine,), (copied,) = pool.allocate(KINDS[0]), other.allocate(KINDS[0])
    assert mine.data_ptr() != copied.data_ptr()


def test_a_pool_is_used_in_its_block_alone(regions):
    pool = MemoryPool()
    with pool.used():
        inside = allocate(*KINDS)
        with MemoryPool().used():
            allocate(*KINDS)
        assert len(regions) == 2
        allocate(*KINDS)
    assert len(regions) == 3
    outside = allocate(*KINDS)
    assert [t.shape for t in outside] == [t.shape for t in inside]
    assert len(regions) == 3


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=29, context=13, layers=3, heads=6, dim=42))


@kernels
@pytest.mark.parametrize("bfloat16", [False, True])
def test_gradients_do_not_depend_on_where_they_are_computed(model, bfloat16):
    def gradients():
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = model(IDS).float().square().mean()
        return torch.autograd.grad(loss, list(model.parameters()), retain_graph=True), loss

    alone, _ = gradients()
    pool = MemoryPool()
    for _ in range(3):
        with pool.used():
            ours, loss = gradients()
            again = torch.autograd.grad(loss, list(model.parameters()))
        for one, two, three in zip(alone, ours, again, strict=True):
            # A library's product may round otherwise by where its rows begin: some tens of
            # roundings of float32, a few of bfloat16's steps of 2⁻⁸.
            tolerance = (0.02 if bfloat16 else 1e-5) * one.abs().max()
            assert (two - one).abs().max() <= tolerance
            assert (three - one).abs().max() <= tolerance


@kernels
def test_updates_take_memory_from_each_other(model, regions):
    config = TrainConfig(steps=5, batch=5)
    parallel = SingleProcess(model)
    step = TrainStep(
        parallel=parallel,
        ranks=Ranks(),
        optimizer=make_optimizer(model, config),
        config=config,
        bfloat16=True,
        end=None,
        loss=parallel.loss,
    )
    nowhere = torch.zeros(5, dtype=torch.int64).numpy()
    batch = Batch(
        ids=IDS, targets=IDS, weights=torch.ones(IDS.shape), starts=nowhere, passes=nowhere
    )
    seen = []
    for number in range(5):
        step(number, batch)
        seen.append(len(regions))
    assert seen[0] > 0
    assert seen[2] == seen[4]


def test_scratch_is_taken_again_but_never_by_two_at_once():
    pool = MemoryPool()
    with pool.used():
        with scratch(*KINDS) as first, scratch(*KINDS) as meanwhile:
            assert first[0].data_ptr() != meanwhile[0].data_ptr()
        with scratch(*KINDS) as again, scratch(*KINDS) as other, scratch(KINDS[0]) as (part,):
            assert again is first
            assert len({again[0].data_ptr(), other[0].data_ptr(), part.data_ptr()}) == 3
    del first, meanwhile, again, other, part
    with pool.used(), scratch(KINDS[1]):
        assert pool._used < 1000  # bytes: what the block before had is free again


def test_scratch_of_no_pool_is_new():
    with scratch(*KINDS) as first, scratch(*KINDS) as second:
        assert [(tuple(tensor.shape), tensor.dtype) for tensor in first] == list(KINDS)
        assert first[0].data_ptr() != second[0].data_ptr()
