"""Nothing of the size of the weight matrix is stored, measured in a separate process."""

from pathlib import Path

import pytest
from support.processes import run_script

SCRIPT = """
import torch, regard
from regard.pattern.readouts import *

def mebibytes(field):  # of this process alone, where ru_maxrss may hold its parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

def attention(length, query, key, value):
    keep = torch.arange(length) >= length // 10
    for mask in (regard.Mask(), regard.window(300), regard.padding(keep)):
        regard.attention(query, key, value, mask=regard.causal() & mask)

def pattern(length, query, key, value):
    mask = regard.causal() & regard.window(2000)
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask)
    pattern.read(TopK(8), Entropy(), Received(), Distance(), Offsets(64), Mass([0]), Image(99, 99))
    pattern.verify(rows=4)
    pattern @ value, value.mT @ pattern, pattern[0, 7:9, :], pattern[1, :, 5], pattern[2].shape

def in_place_of_weights(length, query, key, value):
    _, pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())
    others = [
        pattern.weighted(dot=(query, value)),
        pattern.without(torch.arange(length) % 2 == 0),
        pattern.weighted(key=value.norm(dim=-1)),
        pattern.odds(),
        pattern.without([0, length // 2]),
    ]
    for other in others[:OTHERS]:
        other.read(TopK(8), Received(), Offsets(64), Mass([0]), Image(99, 99))
        other.verify(rows=4)
        other @ value, value.mT @ other, other[0, 7:9, :]

def hidden_spans(length, *_):
    query, key, value = torch.randn(3, 4 * length, 16).unbind()  # of one head, four times the size
    amid = slice(length, 2 * length)
    hidden = regard.masks.hide(amid, queries=slice(2 * length, None))
    mask = regard.causal() & hidden & regard.masks.hide(-9)
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask)
    pattern.read(Entropy(), Received()), pattern[7:9]

def written_out(length, query, key, value):
    regard.explain(query, key, value)

torch.set_num_threads(2)
works = (attention, pattern, hidden_spans, in_place_of_weights, written_out)
for work in works:  # what is loaded and set up on first use
    work(64, *torch.randn(3, HEADS, 64, 16))
before = mebibytes("VmRSS")
for work in works:  # the peak so far: of one after the other
    work(LENGTH, *torch.randn(3, HEADS, LENGTH, 16))
    print(mebibytes("VmHWM") - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="a process's peak memory is read from /proc"
)
@pytest.mark.parametrize(
    ("length", "heads", "others"),
    [(2048, 5, 2), pytest.param(4096, 4, 5, marks=pytest.mark.thorough)],
)
def test_memory_stays_far_below_the_matrix_and_the_measurement_sees_one(length, heads, others):
    matrix = length * length * heads * 4 / 2**20  # MiB of float32: 80 and 256
    script = SCRIPT.replace("LENGTH", str(length)).replace("HEADS", str(heads))
    script = script.replace("OTHERS", str(others))
    *peaks, with_matrix = map(float, run_script(script).split())
    # Inputs and results are of a few MiB, a block of weights 4 MiB and its copies some more. The
    # longest mask of a block of queries is 4 MiB too. The rest is what the allocator keeps.
    assert len(peaks) == 4
    assert max(peaks[:3]) < matrix / 4
    # Of what stands in place of the weights a block has factors and logarithms beside them, and
    # each of two threads keeps what it freed: for the smaller matrix 43 MiB were seen.
    assert peaks[3] < matrix * 0.6
    assert with_matrix > matrix
