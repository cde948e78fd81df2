"""Threads, forks and large addresses: what surrounds the kernels, rather than what they compute."""

import concurrent.futures
import sys
from pathlib import Path

import pytest
import torch
from support.draws import normal
from support.processes import run_script

import regard


def everything(seed):
    """A forward, a backward, a decoding step and readouts."""
    query, key, value = (normal(2, 3, 131, 17, seed=seed + i).requires_grad_() for i in range(3))
    context = regard.attention(query, key, value, mask=regard.causal())
    gradients = torch.autograd.grad(context.square().sum(), (query, key, value))
    with torch.no_grad():
        step = regard.attention(query[..., :1, :], key, value)
        readouts = regard.Pattern(query, key).read(
            regard.readouts.TopK(3), regard.readouts.Received()
        )
    return context.detach(), *gradients, step, *readouts[0], readouts[1]


def test_several_threads_may_call_at_once(threads):
    threads(2)
    wanted = [everything(seed) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(everything, [0, 1, 2, 3] * 8))
    for number, results in enumerate(actual):
        assert all(map(torch.equal, results, wanted[number % 4]))


# Threads of a pool are gone after a fork: a child that waits for them waits for ever.
FORKED = """
import os, sys, warnings
import torch, regard

warnings.simplefilter("ignore")
torch.set_num_threads(2)
x = torch.randn(2, 3, 131, 17, generator=torch.Generator().manual_seed(0))
before = regard.attention(x, x, x, mask=regard.causal())
child = os.fork()
again = torch.equal(before, regard.attention(x, x, x, mask=regard.causal()))
if child == 0:
    os._exit(0 if again else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not again)
"""


# A process of its own: in another, freed memory may have such pages from an earlier call.
HUGE_PAGES = """
import re
import torch, regard

def has_huge_pages(tensor):
    middle, inside = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in open("/proc/self/smaps"):
        if area := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(area[1], 16) <= middle < int(area[2], 16)
        if inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("each area has flags")

shape = (3, 20_011, 67)
query, key, value = (torch.zeros(shape).requires_grad_() for _ in range(3))
context = regard.attention(query, key, value, mask=regard.window(2))
gradients = torch.autograd.grad(context, (query, key, value), torch.ones(shape))
with torch.no_grad():
    plain = regard.attention(query, key, value, mask=regard.window(2))
assert not has_huge_pages(query)
for result in (context, *gradients, plain):
    assert has_huge_pages(result)
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="Linux's huge pages"
)
def test_large_results_ask_for_huge_pages():
    run_script(HUGE_PAGES, timeout=120)


@pytest.mark.thorough
def test_a_process_may_fork_after_use():
    run_script(FORKED, timeout=120)


# A fork made before the library is loaded, which is then there in the child alone.
FORKED_BEFORE = """
import os, signal, sys, warnings
import torch, regard

warnings.simplefilter("ignore")
torch.set_num_threads(2)
torch.ones(2**22).exp_()  # work for torch's pool
x = torch.randn(2, 3, 131, 17, generator=torch.Generator().manual_seed(0))
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(60)  # whoever waits for the pool is ended
    context = regard.attention(x, x, x, mask=regard.causal())
    received = regard.Pattern(x, x, mask=regard.causal()).received()
    os.write(writing, bytes(context.numpy()) + bytes(received.numpy()))
    os._exit(0)
os.close(writing)
with open(reading, "rb") as pipe:
    results = pipe.read()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
context = regard.attention(x, x, x, mask=regard.causal())
received = regard.Pattern(x, x, mask=regard.causal()).received()
assert results == bytes(context.numpy()) + bytes(received.numpy())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks are safe by the runtime elsewhere")
def test_a_process_may_fork_before_use():
    run_script(FORKED_BEFORE, timeout=240)


@pytest.mark.parametrize("layout", ["rows", "heads"])
def test_addresses_beyond_two_to_the_31st_element(layout):
    """Of memory that is reserved, only the pages in use are ever touched."""
    far = 2**29 + 17 * 31
    keys = 7
    shape = (1, 1, keys, 16) if layout == "rows" else (1, keys, 3, 16)
    strides = (0, 0, far, 1) if layout == "rows" else (0, far, 16, 1)
    reserved = torch.empty(keys * far)
    assert strides[1 if layout == "heads" else 2] * (keys - 1) > 2**31
    key = reserved.as_strided(shape, strides)
    key.copy_(normal(*shape))
    query = normal(shape[0], shape[1], 5, 16, seed=1)
    context = regard.attention(query, key, key)
    torch.testing.assert_close(context, regard.attention(query, key.clone(), key.clone()))
    read = regard.Pattern(query, key).received()
    torch.testing.assert_close(read, regard.Pattern(query, key.clone()).received())


def test_more_keys_than_sixteen_bits_count():
    keys = 2**16 + 67
    query, key, value = normal(1, 1, 19, 8), normal(1, 1, keys, 8, seed=1), normal(1, 1, keys, 3)
    mask = regard.causal() & regard.window(keys - 5)
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask)
    steps = regard.explain(query.double(), key.double(), value.double(), mask=mask)
    torch.testing.assert_close(context.double(), steps.context, rtol=0, atol=1e-6)
    torch.testing.assert_close(pattern.logsumexp.double(), steps.logsumexp, rtol=0, atol=1e-5)


def test_explain_shows_which_weights_the_kernel_drops():
    """With a value of one number a key, the context is the sum of the kept weights."""
    query, key = normal(2, 4, 67, 8), normal(2, 4, 71, 8, seed=1)
    value = torch.eye(71).expand(2, 4, 71, 71)
    options = {"mask": regard.causal(), "dropout": 0.3}
    context = regard.attention(
        query, key, value, **options, generator=torch.Generator().manual_seed(5)
    )
    steps = regard.explain(query, key, value, **options, generator=torch.Generator().manual_seed(5))
    assert torch.equal(context == 0, steps.dropped == 0)
    torch.testing.assert_close(context, steps.dropped, rtol=1e-5, atol=1e-6)
