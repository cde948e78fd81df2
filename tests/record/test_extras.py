"""torch alone records and reads; what needs more says which library, and how to get it."""

import subprocess
import sys

import pytest

from regard._extras import install

BEFORE = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
import torch, regard
layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
with regard.record(layer) as recording:
    layer(x, x, x)
"""
LIBRARIES = ["pandas", "transformers", "rich", "safetensors", "fastapi", "uvicorn", "matplotlib"]


def run(lines):
    code = BEFORE.format(missing=LIBRARIES) + lines
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_torch_is_enough_to_record_and_read():
    done = run(
        "recording.read(regard.Entropy()); recording.heads(); recording.rollout(-1)\n"
        "print(recording[0]._repr_html_(), recording._repr_html_())"
    )
    assert done.returncode == 0, done.stderr
    assert "matplotlib" in done.stdout


@pytest.mark.parametrize(
    ("line", "library", "extra"),
    [
        ("recording.save('run')", "safetensors", "record"),
        ("regard.load('run')", "safetensors", "record"),
        ("recording.heads().frame()", "pandas", "record"),
        ("recording.read(regard.Entropy())['entropy'].frame()", "pandas", "record"),
        ("regard.use_in_transformers()", "transformers", "transformers"),
        ("regard.explore(recording)", "uvicorn", "explore"),
    ],
)
def test_a_missing_library_is_named_with_the_cure(line, library, extra):
    done = run(line)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        f"ModuleNotFoundError: this needs the library {library}: {install(extra)}"
    )
