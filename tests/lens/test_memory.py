"""A trace keeps nothing of the size of a matrix of weights: measured in processes of their own."""

from pathlib import Path

import pytest
from support.processes import run_script

SCRIPT = """
import sys, tempfile, torch
import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig, save
from regard.lens import Answer

def mebibytes(field):  # of this process alone, where ru_maxrss may hold its parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

torch.set_num_threads(1)
length, heads = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
tokenizer = BPETokenizer.train(["the cat sat"], vocab_size=257)
config = GPTConfig(context=length, layers=2, heads=heads, dim=8 * heads, vocab_size=257)
with tempfile.TemporaryDirectory() as folder:
    save(folder, GPT(config), tokenizer)
    model = regard.models.open(folder)

def trace(length):  # half of the text is the document: as many queries propagate what they get
    ids, half = torch.randint(257, (length,)), length // 2
    neutral = torch.cat([ids[:half], ids[:9]]), Answer(slice(-3, None))
    return regard.lens.trace(
        model, ids, Answer(slice(-5, None)), (3, half), hops=2, neutral=neutral
    )

trace(64)  # what is loaded and set up on first use
before = mebibytes("VmRSS")
found = trace(length)
print(mebibytes("VmHWM") - before)
assert list(found.shares) == ["attention", "difference", "moved", "toward"]
query = torch.randn(1, length, 8)
regard.explain(query, query, query)  # one head, with every matrix in full
print(mebibytes("VmHWM") - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="a process's peak memory is read from /proc"
)
def test_a_trace_grows_with_the_text_not_with_its_square():
    short, long, heads = 2048, 4096, 3
    (small, _), (large, with_matrix) = (
        map(float, run_script(SCRIPT, str(length), str(heads)).split()) for length in (short, long)
    )
    matrix = long * long * 4 / 2**20  # MiB of one head of one layer, in float32: 64
    # 8 and 17 MiB were seen. Of a matrix the long text has three quarters more than the short one,
    # and half of that if it has the rows after the document alone.
    assert large < matrix / 2
    assert large - small < matrix * 3 / 4 / 3
    assert with_matrix > matrix
