"""A knocked-out span needs no matrix: measured in a process of its own."""

from pathlib import Path

import pytest
from support.processes import run_script

SCRIPT = """
import torch, regard
import torch.nn.functional as F

def mebibytes():  # of this process alone, where ru_maxrss may hold its parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

class Attend(torch.nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

def work(length, state):
    torch.manual_seed(0)
    inputs = torch.randn(3, 1, 12, length, 64).unbind()
    with torch.no_grad(), regard.intervene(model) as change:
        state(change)
        return model(*inputs)

def cut(change):
    change.knock_out(keys=slice({first}, {stop}), queries=slice({query}, None))

torch.set_num_threads(2)
model = Attend()
work(64, lambda change: change.temper(by=0.9))  # what is loaded and set up on first use
plain = work({length}, lambda change: change.temper(by=1.0))
work({length}, lambda change: change.temper(by=1.0))  # beside a result that is kept
before = mebibytes()
changed = work({length}, cut)
extra = mebibytes() - before
assert torch.allclose(plain[..., : {query}, :], changed[..., : {query}, :], atol=1e-5)
assert not torch.allclose(plain[..., {query} :, :], changed[..., {query} :, :], atol=1e-5)
print(extra)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="a process's peak memory is read from /proc"
)
def test_a_span_amid_a_long_text():
    script = SCRIPT.format(length=4096, first=750, stop=1250, query=2250)
    assert float(run_script(script)) < 64  # MiB, where the weights would be 768
