"""A long sequence is recorded without a matrix: measured in a process of its own."""

from pathlib import Path

import pytest
from support.processes import run_script

LENGTH, HEADS, LAYERS = 4096, 4, 2
MATRICES = LENGTH * LENGTH * HEADS * LAYERS * 4 / 2**20  # MiB that eager weights take: 512

SCRIPT = """
import torch, transformers
import regard

def mebibytes(field):  # of this process alone, where ru_maxrss may hold its parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

torch.set_num_threads(1)
config = transformers.{config}(
    vocab_size=101, hidden_size=32, intermediate_size=32, num_hidden_layers={layers},
    num_attention_heads={heads}, num_key_value_heads=2, head_dim=8,
    max_position_embeddings={length}, pad_token_id=0, {options}
)
model = transformers.{model}._from_config(config, attn_implementation={how!r}).eval()
ids = torch.randint(3, 101, (1, {length}))
attention_mask = torch.ones_like(ids)
attention_mask[:, :{padding}] = 0

def work(length):
    with torch.no_grad(), regard.record(model) as recording:
        model.model(ids[:, -length:], attention_mask=attention_mask[:, -length:], use_cache=False)
    readouts = [regard.readouts.Received(), regard.readouts.Entropy()]
    received = recording.read(*readouts, progress=False)["received"]
    pattern = recording[1]
    sums = pattern[0, 3, -5:].sum(-1)
    assert received.values.shape == ({layers}, 1, {heads}, length) and (sums - 1).abs().max() < 1e-4
    return recording

work(64)
before = mebibytes("VmRSS")
recording = work({length})
peak = mebibytes("VmHWM") - before
kept = {{}}
for layer in recording.layers:
    problem = layer.pattern.problem
    rows = problem.rows
    bounds = (rows.bounds.positions, rows.bounds.start, rows.bounds.stop)
    assert rows.bias is None and rows.allowed is None
    for tensor in (problem.query, problem.key, *bounds):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
print(peak, sum(kept.values()) / 2**20)
"""

CLASSES = {
    "causal": {"config": "LlamaConfig", "model": "LlamaForCausalLM", "options": ""},
    "window": {
        "config": "Gemma2Config",
        "model": "Gemma2ForCausalLM",
        "options": "sliding_window=300, layer_types=['sliding_attention', 'full_attention']",
    },
}


@pytest.mark.thorough
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="a process's peak memory is read from /proc"
)
@pytest.mark.parametrize(
    ("name", "how", "padding"),
    [("causal", "sdpa", 0), ("window", "eager", 1001)],
)
def test_memory_stays_far_below_the_weights(name, how, padding):
    script = SCRIPT.format(
        how=how, padding=padding, length=LENGTH, heads=HEADS, layers=LAYERS, **CLASSES[name]
    )
    peak, kept = map(float, run_script(script).split())
    # Some MiB of activations, and some rows of a window's mask at a time.
    assert peak < MATRICES / 8
    # Per layer a query and two key heads of L × 8, and at most three integers a row: 1.1 MiB.
    assert kept < 3
