"""SmolLM2 in browsers: logits and every head's rows at every position are Python's."""

import functools
import http.server
import json
import threading

import pytest
import torch
from support.real import smollm2_file

import regard
from regard.models import LanguageModel
from regard.models.own_gpt import own_gpt
from regard.page.file.bundle import kernels, script
from regard.page.file.live_folder import as_int8

pytestmark = [pytest.mark.thorough, pytest.mark.real]

TEXTS = [
    "The capital of France is",
    "The capital of Italy is",
    "When Mary and John went to the store, John gave a drink to",
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "def add(a, b):\n    return a +",
    "Once upon a time, in a land far away, there lived a",
    "Water boils at 100 degrees",
    "“Why?” asked the child. “Because,” said the",
    "Die Katze sitzt auf der",
    "El perro corre por la",
    "red green blue red green",
    "The code of the shed is 7291. Again: the code of the shed is",
    "import numpy as np\nx = np.",
    "To be, or not to be, that is the",
    "She opened the box and found",
    "日本の首都は",
    "2 + 2 =",
    "My name is Anna. What is my name? Your name is",
    "<|im_start|>user\nHello<|im_end|>\n",
    "\n\n\t a",
]
# Inputs of a product are rounded to 16 bits of their largest, which some channels of this model
# exceed the others by a hundred times, through 120 products. Logits are up to 30, and int8 itself
# moves them by 0.5. In blocks each 32 inputs have a scale. Weights are between 0 and 1.
NEAR = {"int8": (0.1, 5e-3), "blocks": (0.02, 1e-3)}

CODE = """
window.answer = (async () => {
  const read = (name) => document.getElementById(name).textContent;
  const bytes = await module_offline_bytes.inflated(read("kernels"));
  const kernels = await module_kernels_memory.Kernels.of(bytes);
  const stored = await (await fetch("model.json")).json();
  const { weights, tokenizer } = await module_live_pieces.broughtModel(
    kernels, stored, await module_live_pieces.folderOf(stored, location.href), () => {});
  const model = new module_kernels_gpt.GPT(kernels, stored.config, weights);
  const coder = module_live_tokenizer.tokenizerOf(tokenizer);
  const subject = new module_live_subject.Subject(model, coder, "m");
  const expected = new Float32Array(await (await fetch("expected.bin")).arrayBuffer());
  const { layers, heads, vocab_size: V } = stored.config;
  const ended = (steps) => {
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
    }
  };
  const rowOf = module_kernels_pattern.row;
  let [at, logits, rows, otherwise, positions] = [0, 0, 0, [], 0];
  const off = (values) => {
    let most = 0;
    for (const value of values) most = Math.max(most, Math.abs(value - expected[at++]));
    return most;
  };
  for (const { text, ids } of await (await fetch("texts.json")).json()) {
    if (coder.encode(text).join() !== ids.join()) otherwise.push(text);
    const cache = model.cache(ids.length);
    for (const id of ids) logits = Math.max(logits, off(ended(model.read([id], cache))));
    cache.release();
    const run = ended(subject.open(ids, []));
    for (let layer = 0; layer < layers; layer++)
      for (let head = 0; head < heads; head++)
        for (let query = 0; query < ids.length; query++)
          rows = Math.max(rows, off(rowOf([subject.head(run, layer, head)], query)));
    positions += ids.length;
  }
  return JSON.stringify({ logits, rows, otherwise, positions, left: expected.length - at });
})();
"""


@pytest.fixture(scope="module", params=NEAR)
def weights(request):
    return request.param


@pytest.fixture(scope="module")
def address(smollm2, weights, tmp_path_factory):
    """A page that compares all texts with what Python computes of the same matrices."""
    folder = tmp_path_factory.mktemp("real") / "live"
    if weights == "blocks":
        shown = model = regard.models.open(smollm2_file(), weights="blocks")
        most = 1.02 * smollm2_file().stat().st_size
    else:
        shown = smollm2
        model = LanguageModel(as_int8(own_gpt(smollm2)), smollm2.tokenizer, name="int8")
        parameters = sum(parameter.numel() for parameter in smollm2.module.parameters())
        most = min(140_000_000, 1.05 * parameters)
    assert regard.report(shown, folder, live=True) < most
    html = (folder / "index.html").read_text("utf-8")
    description = html.split('id="model">')[1].split("</script>")[0]
    (folder / "model.json").write_text(description)
    texts, parts = [], []
    for text in TEXTS:
        ids = smollm2.read(text).ids
        texts.append({"text": text, "ids": ids})
        with regard.record(model) as recording:
            parts.append(model(torch.tensor(ids)).flatten())
        parts += [layer.pattern.dense().flatten() for layer in recording.layers]
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "expected.bin").write_bytes(torch.cat(parts).float().numpy().tobytes())
    page = f"{kernels()}<script>{script('live/worker.js')}</script><script>{CODE}</script>"
    (folder / "compare.html").write_text(f'<!doctype html><meta charset="utf-8">{page}')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/compare.html"
        server.shutdown()


def check(answer, weights):
    answer = json.loads(answer)
    logits, rows = NEAR[weights]
    assert (answer["otherwise"], answer["left"]) == ([], 0)
    assert answer["positions"] > 150
    assert answer["logits"] < logits
    assert answer["rows"] < rows


def test_in_chromium(pages, address, weights):
    with pages() as opened:
        opened.set_default_timeout(300_000)
        opened.goto(address)
        check(opened.evaluate("window.answer"), weights)


def test_in_firefox(firefox, address, weights):
    firefox.goto(address)
    check(firefox.evaluate("window.answer"), weights)
