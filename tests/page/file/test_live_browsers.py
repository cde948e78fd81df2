"""Held-out texts in browsers: the probability of every next token is Python's to 1e-4."""

import json

import pytest
import torch

from regard.gpt.stories import stories
from regard.page.file.bundle import embedded, kernels, script
from regard.page.file.live import pack_model, tokenizer_file

TEXTS = 20
"""Stories of seeds that no training has."""
LEFT_OUT = 1e-5  # probabilities below it are not written down, and compared as 0
ALLOWED = 1e-4

# In the page: the largest difference of any probability, and the texts whose ids differ.
CODE = """
window.answer = (async () => {
  const read = (name) => document.getElementById(name).textContent;
  const { config, tokenizer, tensors } = JSON.parse(read("model"));
  const texts = JSON.parse(read("texts"));
  const inflated = (name) => module_offline_bytes.inflated(read(name));
  const kernels = await module_kernels_memory.Kernels.of(await inflated("kernels"));
  const weights = Object.entries(module_live_weights.unpack(await inflated("numbers"), tensors));
  const kept = Object.fromEntries(weights.map(([name, values]) => [name, kernels.keep(values)]));
  const model = new module_kernels_gpt.GPT(kernels, config, kept);
  const coder = module_live_tokenizer.tokenizerOf(tokenizer);
  let [worst, positions, otherwise] = [0, 0, []];
  for (const { text, ids, expected } of texts) {
    const cache = model.cache(ids.length);
    for (const [row, entries] of expected.entries()) {
      const steps = model.read([ids[row]], cache);
      steps.next();
      const shares = module_live_sampling.softmax(steps.next().value);
      for (const [token, share] of entries) shares[token] -= share;
      for (const share of shares) worst = Math.max(worst, Math.abs(share));
      positions += 1;
    }
    cache.release();
    if (coder.encode(text).join() !== ids.join()) otherwise.push(text);
  }
  return JSON.stringify({ worst, positions, otherwise });
})();
"""


@pytest.fixture(scope="module")
def page(shipped, tmp_path_factory):
    """A page that computes the probabilities of all texts and compares them with Python's."""
    model, tokenizer = shipped
    description, numbers = pack_model(model, tokenizer_file(tokenizer))
    texts = []
    for story in stories(0, TEXTS):
        ids = tokenizer.encode(story.text)
        with torch.inference_mode():
            shares = model(torch.tensor(ids)).softmax(-1)
        likely = [(row > LEFT_OUT).nonzero().flatten() for row in shares]
        expected = [
            list(zip(tokens.tolist(), row[tokens].tolist(), strict=True))
            for row, tokens in zip(shares, likely, strict=True)
        ]
        texts.append({"text": story.text, "ids": ids, "expected": expected})
    elements = [
        f'{kernels()}<script type="text/plain" id="numbers">{numbers}</script>',
        f'<script type="application/json" id="model">{embedded(description)}</script>',
        f'<script type="application/json" id="texts">{embedded(texts)}</script>',
        f"<script>{script('live/worker.js')}</script>",
        f"<script>{CODE}</script>",
    ]
    file = tmp_path_factory.mktemp("live") / "probabilities.html"
    file.write_text('<!doctype html><meta charset="utf-8">' + "\n".join(elements))
    return file.as_uri()


def check(answer):
    answer = json.loads(answer)
    assert answer["otherwise"] == []
    assert answer["positions"] > 80 * TEXTS
    assert LEFT_OUT < ALLOWED / 2
    assert answer["worst"] < ALLOWED


def test_in_chromium(pages, page):
    with pages(offline=True) as opened:
        opened.goto(page)
        check(opened.evaluate("window.answer"))


@pytest.mark.thorough
def test_in_firefox(firefox, page):
    firefox.goto(page)
    check(firefox.evaluate("window.answer"))
