"""A notebook of marimo: which head of the small model looks where. ``marimo edit look_inside.py``.

Its numbers follow the two sliders.
"""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo
    import torch

    import regard

    return mo, regard, torch


@app.cell
def _(regard, torch):
    model = regard.models.open(None)  # the model that comes with the package
    read = model.read("Tom had a red kite and a blue drum. Tom wanted the blue")
    with torch.no_grad(), regard.record(model, tokens=model.tokenizer) as recording:
        model(torch.tensor(read.ids))
    tokens = recording.tokens[0]
    return recording, tokens


@app.cell
def _(mo, recording):
    layers, heads = len(recording), recording[0].shape[0]
    layer = mo.ui.slider(0, layers - 1, value=2, label="layer", show_value=True)
    head = mo.ui.slider(0, heads - 1, label="head", show_value=True)
    mo.hstack([layer, head])
    return head, layer


@app.cell
def _(head, layer, recording, tokens):
    weights = recording[layer.value][head.value, -1]  # of the last token, on every key
    keys = weights.topk(3).indices.tolist()
    looks_at = {f"{key} {tokens[key]!r}": round(float(weights[key]), 3) for key in keys}
    looks_at
    return (looks_at,)


@app.cell
def _(recording, regard):
    entropy = recording.read(regard.readouts.Entropy())["entropy"].frame()
    narrow = entropy.groupby(["layer", "head"], as_index=False)["entropy"].mean()
    narrow.sort_values("entropy").head(5)  # the heads that look at the fewest keys
    return (narrow,)


@app.cell
def _(mo, recording):
    from regard.page import ExplorerWidget, RecordingSubject

    mo.ui.anywidget(ExplorerWidget(RecordingSubject(recording, title="a line")))


if __name__ == "__main__":
    app.run()
