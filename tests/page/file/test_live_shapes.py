"""Models of other libraries run in the page as in Python, whatever their shape and vocabulary."""

import json
import re

import pytest
import torch
import transformers as hf
from support.sentence_piece import sentence_piece
from support.small_models import tokenizer as byte_level

import regard
from regard.page._live import live_html
from regard.page.subjects import as_subject

TEXT = (
    "She thanked him in the spring, and the naïve moon — 你好 — leaned towards the sea.\n\nOne star"
)
SIZES = {
    "hidden_size": 40,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 127,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
}
PART = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}
SHAPES = {
    "Llama 2": lambda **sizes: hf.LlamaConfig(**SIZES, **sizes),
    "YaRN": lambda **sizes: hf.LlamaConfig(
        **SIZES, **sizes, rope_parameters=YARN, attention_bias=True
    ),
    "part of the channels": lambda **sizes: hf.StableLmConfig(
        **SIZES, **sizes, rope_parameters=PART
    ),
    "GPT-2": lambda **sizes: hf.GPT2Config(
        n_embd=40, n_layer=2, n_head=4, n_positions=127, initializer_range=0.3, **sizes
    ),
}


@pytest.fixture(scope="module", params=SHAPES)
def model(request, tmp_path_factory):
    """A model of a folder, its tokenizer of bytes for GPT-2 and else as Llama 2's."""
    pieces = hf.PreTrainedTokenizerFast(tokenizer_object=sentence_piece(), bos_token="<s>")
    tokenizer = byte_level(TEXT) if request.param == "GPT-2" else pieces
    torch.manual_seed(4)
    config = SHAPES[request.param](vocab_size=len(tokenizer))
    folder = tmp_path_factory.mktemp("shapes") / "model"
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return regard.models.open(folder)


def test_a_model_and_its_texts_are_as_in_python(node, model):
    subject = as_subject(model, text=TEXT)
    html = live_html(subject)
    given = {
        "model": json.loads(re.search(r'id="model">(.*)</script>', html)[1]),
        "numbers": re.search(r'id="numbers">(.*)</script>', html)[1],
        "text": TEXT,
    }
    code = """
    const model = await modelOf(given.model, given.numbers);
    const live = new Subject(model, tokenizerOf(given.model.tokenizer), "m");
    const run = finished(live.read(given.text));
    const { text, tokens } = live.describe(run);
    const after = run.ids.map((_, end) =>
      finished(live.model.read(run.ids.slice(0, end + 1), live.model.cache(end + 1))));
    return { ids: run.ids, text, tokens, after };"""
    imports = {"live/subject.js": "Subject", "live/tokenizer.js": "tokenizerOf"}
    answer = node(imports, code, given)
    run = subject.run(subject.about()["runs"][0])
    expected = run.describe()
    assert answer["ids"] == subject.ids_of(run)
    assert answer["text"] == TEXT == expected["text"]
    assert answer["tokens"] == expected["tokens"]
    logits = model(torch.tensor(answer["ids"])).float()
    assert logits.std() > 0.5  # they are not nearly equal
    torch.testing.assert_close(torch.tensor(answer["after"]), logits, rtol=0, atol=1e-4)
