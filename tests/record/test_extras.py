"""What the extras bring is not needed to record and read; where it is missing, an error says so."""

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
LIBRARIES = ["anywidget", "lightning", "matplotlib", "transformers"]


def run(lines):
    code = BEFORE.format(missing=LIBRARIES) + lines
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_the_extras_a_model_is_recorded_and_read():
    done = run(
        "recording.read(regard.readouts.Entropy()); regard.lens.heads(recording); "
        "regard.lens.rollout(recording, -1)\n"
        "print(recording[0]._repr_html_(), recording._repr_html_())"
    )
    assert done.returncode == 0, done.stderr
    assert "matplotlib" in done.stdout


@pytest.mark.parametrize(
    ("line", "library", "extra"),
    [
        (
            "from regard.record import use_in_transformers; use_in_transformers()",
            "transformers",
            "transformers",
        ),
        ("import regard.integrations.lightning", "lightning", "trackers"),
        ("from regard.page import ExplorerWidget", "anywidget", "notebook"),
    ],
)
def test_a_missing_library_is_named_with_the_cure(line, library, extra):
    done = run(line)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        f"ModuleNotFoundError: this needs the library {library}: {install(extra)}"
    )
