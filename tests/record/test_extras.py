"""What the extras bring is not needed to record and read; where it is missing, an error says so."""

from support.processes import run_script

from regard._extras import install

SCRIPT = """
import sys
for name in ("anywidget", "lightning", "matplotlib", "transformers"):
    sys.modules[name] = None
import torch, regard
layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
with regard.record(layer) as recording:
    layer(x, x, x)
recording.read(regard.readouts.Entropy())
regard.lens.heads(recording)
regard.lens.rollout(recording, -1)
assert "matplotlib" in recording[0]._repr_html_() + recording._repr_html_()

def transformers():
    from regard.record import use_in_transformers
    use_in_transformers()

def widget():
    from regard.page import ExplorerWidget

def lightning():
    import regard.integrations.lightning

for use in (transformers, lightning, widget):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_without_the_extras_a_model_is_recorded_and_read_and_an_error_names_what_is_missing():
    errors = run_script(SCRIPT).splitlines()
    needed = ("transformers", "transformers"), ("lightning", "trackers"), ("anywidget", "notebook")
    assert errors == [
        f"this needs the library {library}: {install(extra)}" for library, extra in needed
    ]
