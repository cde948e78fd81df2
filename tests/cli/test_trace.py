"""`regard trace`: what an answer took from tokens and passages of a document, and needed."""

import html
import json
import re
import shutil

import pytest
import torch
from support import small_models

import regard as library
from regard.gpt import GPT, CharTokenizer, GPTConfig, save
from regard.gpt.config import HAS_READ
from regard.gpt.stories import story

hf = pytest.importorskip("transformers")

DOCUMENT = "# Cats\n\nThe cat sat on the mat.\n\nThe dog sat on the cat,\nthe cat on the dog.\n"
QUESTION = "The dog sat on"
UNLIKELY = "the model would hardly give this answer"
PARTS = ["# Cats", "The cat sat on the mat.", "The dog sat on the cat,\nthe cat on the dog."]


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "doc.md"
    path.write_text(DOCUMENT)
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A small random Llama with a tokenizer, and the same with a chat template."""
    return {
        name: small_models.save_llama(
            tmp_path_factory.mktemp(name), small_models.tokenizer(DOCUMENT, template=template)
        )
        for name, template in (("plain", None), ("chat", small_models.CHAT))
    }


@pytest.fixture
def measured(regard, document):
    def call(folder, *options):
        done = regard(
            *("trace", folder, "--file", document, "--question", QUESTION),
            *("--json", *(options if "--by" in options else ("--by", "passages", *options))),
        )
        # A random model finds any answer that is given unlikely.
        assert (done.status, re.sub(f"regard: {UNLIKELY}.*\n", "", done.err)) == (0, "")
        return json.loads(done.out)

    return call


@pytest.mark.parametrize("name", ["plain", "chat"])
def test_numbers_are_those_of_the_library_and_offsets_those_of_the_file(measured, folders, name):
    chat = ("--chat",) if name == "chat" else ()
    found = measured(folders[name], "--tokens", 3, *chat)
    assert [part["text"] for part in found["passages"]] == PARTS
    for part in found["passages"]:
        assert DOCUMENT[part["start_character"] : part["stop_character"]] == part["text"]
    model = hf.AutoModelForCausalLM.from_pretrained(folders[name]).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folders[name])
    asked = f"{DOCUMENT.rstrip()}\n\n{QUESTION}"
    text = asked if name == "plain" else f"<user>{asked}<assistant>"
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=name == "plain").input_ids
    with torch.no_grad():
        for _ in range(3):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=-1)
    assert found["answer"] == tokenizer.decode(ids[0, -3:])
    spans = [(part["first"], part["stop"]) for part in found["passages"]]
    assert [tokenizer.decode(ids[0, slice(*span)]).strip() for span in spans] == PARTS
    target = library.lens.Answer(slice(-3, None))
    effects = library.lens.effects(model, ids, target, over=spans, hidden_from="question")
    apart = " " if name == "plain" else "<assistant>"
    other = "N/A".join(text.rsplit(QUESTION, 1)).removesuffix("<assistant>") + apart + "N/A"
    assert name != "plain" or other.endswith("\n\nN/A N/A")
    other = tokenizer(other, return_tensors="pt", add_special_tokens=name == "plain").input_ids
    with library.record(model) as recording, torch.no_grad():
        model(ids)
    with library.record(model) as recording_of_other, torch.no_grad():
        model(other)
    length = len(
        tokenizer(" N/A" if name == "plain" else "N/A", add_special_tokens=False).input_ids
    )
    neutral = recording_of_other, library.lens.Answer(slice(-length, None))
    weights = library.lens.passage_weights(recording, spans, target, neutral=neutral)
    numbers = {
        "effect": (effects.values, 1e-5),
        "weight": (weights.mean, 1e-6),
        "difference": (weights.difference, 1e-6),
    }
    for key, (values, tolerance) in numbers.items():
        for part, value in zip(found["passages"], values.tolist(), strict=False):
            assert part[key] == pytest.approx(value, abs=tolerance)
    assert found["log_probability"] == pytest.approx(effects.unchanged, abs=1e-5)


def test_an_answer_may_be_given(measured, folders):
    found = measured(folders["plain"], "--answer", "the cat", "--hidden-from", "answer")
    assert found["answer"] == " the cat"  # joined by a space
    first, stop = found["answer_tokens"]
    assert found["hidden_from"] == [first - 1, stop - 1]
    assert measured(folders["chat"], "--answer", "the cat", "--chat")["answer"] == "the cat"


def test_weights_are_kept_as_int8_where_asked_for(measured, tmp_path, folders):
    torch.manual_seed(3)
    tokenizer = CharTokenizer(DOCUMENT + QUESTION)
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=127, layers=2, heads=3, dim=15)
    save(tmp_path, GPT(config), tokenizer)
    command = ("--answer", "the cat", "--neutral", "The", "--weights", "int8")
    for folder in (tmp_path, folders["plain"]):  # ours, and a Llama
        found = measured(folder, *command)
        int8 = library.models.open(folder, weights="int8")
        ids = torch.tensor(int8.read(f"{DOCUMENT.rstrip()}\n\n{QUESTION} the cat").ids)
        spans = [(part["first"], part["stop"]) for part in found["passages"]]
        target = library.lens.Answer(slice(*found["answer_tokens"]))
        effects = library.lens.effects(int8, ids, target, over=spans, hidden_from="question")
        assert int8.module.has_int8_weights
        assert found["log_probability"] == pytest.approx(effects.unchanged, abs=1e-5)


def test_passages_stand_in_the_order_of_need_and_are_quoted(regard, tmp_path, monkeypatch):
    text = story(6125).text
    context, question = text[: text.rindex(" barn.")].rsplit("\n\n", 1)
    path = tmp_path / "story.txt"
    path.write_text(context)
    command = ("trace", "--file", path, "--question", question, "--tokens", 1, "--by", "passages")
    done = regard(*command)
    assert (done.status, done.err) == (0, "")
    assert "Answer barn\n" in done.out
    rows = [line for line in done.out.splitlines() if re.match(r" *[+−]0\.\d{3} ", line)]
    assert len(rows) == 3 + 2  # passages; sinks and everything else
    assert "Dad had taken the bead" in rows[0]
    figures = re.findall(r" ([+−]\d+\.\d\d) ", done.out)
    changes = [float(figure.replace("−", "-")) for figure in figures]
    assert changes[0] < -1
    assert changes == sorted(changes)
    assert "Looked at and needed most: characters " in done.out
    assert "Dad had taken the bead into the barn" in " ".join(done.out.split())
    monkeypatch.setenv("COLUMNS", "40")
    narrow = regard(*command).out
    assert max(map(len, narrow.splitlines())) <= 40
    assert "█" not in narrow


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "words"), "--by is 'words': expected one of tokens, passages"),
        (
            ("--by", "passages", "--hidden-from", "all"),
            "--hidden-from is 'all': expected one of question, answer",
        ),
        (("--hidden-from", "answer"), "--hidden-from goes with --by passages, and --by is tokens"),
        (("--by", "passages", "--hops", "2"), "--hops goes with --by tokens, and --by is passages"),
        (("--measure", "look"), "--measure is 'look': expected one of attention, difference"),
        (("--hops", "-1"), "--hops must be at least 0, but is -1"),
        (("--out", "no/t.html"), "--out no/t.html is in no folder that exists"),
        (("--out", "/"), "--out / is a folder: name a file, such as /trace.html"),
        (("--tokens", "0"), "--tokens must be at least 1, but is 0"),
        (("--answer", " "), "--answer is empty"),
        (("--answer", "\udce9"), "--answer is not UTF-8 text: byte 0xe9 at offset 0"),
        (("--question", "\udce9"), "--question is not UTF-8 text: byte 0xe9 at offset 0"),
        (
            ("--tokens", "99"),
            "but the model's context is 101: give a shorter document or fewer --tokens",
        ),
    ],
)
def test_misuse_is_refused_in_one_line(misused, document, folders, options, message):
    command = ("trace", folders["plain"], "--file", document, "--question", QUESTION)
    assert message in misused(*command, *options)


def test_files_that_cannot_be_read_are_refused(misused, tmp_path, folders):
    def line(path, folder=folders["plain"]):
        return misused("trace", folder, "--file", path, "--question", "?")

    assert "does not exist" in line(tmp_path / "none.md")
    blank = tmp_path / "blank.md"
    blank.write_text("\n \n")
    assert "white space alone" in line(blank)
    blank.write_text("A cat.")
    assert "nowhere" in line(blank, "nowhere")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}')
    assert "regard: " in line(blank, broken)


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", "cut"), ("tokenizer.json", "{"), ("tokenizer.json", None)],
)
def test_a_damaged_folder_is_named_in_one_line(misused, document, tmp_path, folders, name, content):
    folder = shutil.copytree(folders["plain"], tmp_path / "damaged")
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    line = misused("trace", folder, "--file", document, "--question", "?")
    assert f"{folder} holds no language model that transformers can read: " in line


@pytest.fixture(scope="session")
def bloom(tmp_path_factory, folders):
    """A Bloom, whose attention transformers does not let anyone replace."""
    folder = shutil.copytree(folders["plain"], tmp_path_factory.mktemp("bloom") / "model")
    size = hf.AutoConfig.from_pretrained(folder).vocab_size
    shape = hf.BloomConfig(vocab_size=size, hidden_size=8, n_layer=1, n_head=2)
    hf.BloomForCausalLM(shape).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("by", ["tokens", "passages"])
def test_attention_that_cannot_be_recorded_is_refused_in_one_line(misused, document, bloom, by):
    command = ("--question", "?", "--answer", "the cat", "--by", by)
    assert "does not let it be replaced" in misused("trace", bloom, "--file", document, *command)


def test_what_the_model_that_comes_with_regard_answers_outside_of_its_world_is_a_guess(
    regard, tmp_path, folders
):
    file = tmp_path / "far.txt"
    file.write_text("The stock market fell sharply on Monday.\n\nInvestors sold their bonds.\n")
    asked = ("--file", file, "--question", "Prices were", "--tokens", 2, "--by", "passages")
    command = ("trace", *asked)
    note = "this text is unlike them, and what follows is a guess."
    words = " ".join(regard(*command).out.split())
    assert note in words
    assert "Outside them it guesses" not in words
    assert regard(*command, "--json").err.endswith(f"{note}\n")
    assert note not in regard("trace", folders["plain"], *asked, "--json").err
    file.write_text(story(0).text)
    near = ("trace", "--file", file, "--question", "Then", "--tokens", 2, "--by", "passages")
    assert "Outside them it guesses" in " ".join(regard(*near).out.split())
    assert regard(*near, "--json").err == f"regard: {HAS_READ}\n"


def test_a_hybrid_model_says_what_hiding_leaves_open(regard, document, folders, tmp_path):
    folder = tmp_path / "hybrid"
    tokenizer = hf.AutoTokenizer.from_pretrained(folders["plain"])
    tokenizer.save_pretrained(folder)
    shape = hf.Lfm2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=2, block_multiple_of=8,
        layer_types=["conv", "full_attention", "conv"],
        bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    hf.Lfm2ForCausalLM(shape).save_pretrained(folder)
    command = ("trace", folder, "--file", document, "--question", QUESTION, "--answer", "one")
    note = "tokens reach each other without attention in 2 of the model's 3 layers (conv)"
    done = regard(*command)
    assert done.status == 0
    assert note in " ".join(done.out.split())
    done = regard(*command, "--by", "passages", "--json")
    assert f"regard: {note}" in done.err
    assert json.loads(done.out)["layers"] == [0]


@pytest.mark.parametrize("name", ["plain", "chat"])
def test_numbers_of_tokens_are_those_of_the_library(measured, folders, name):
    chat = ("--chat",) if name == "chat" else ()
    options = ("--by", "tokens", "--hops", 2, "--steps", 2, "--answer", "the cat", *chat)
    found = measured(folders[name], *options)
    model = library.models.open(folders[name])
    rest = f"{DOCUMENT.rstrip()}\n\n{QUESTION}"
    text = f"<user>{rest}<assistant>the cat" if chat else f"{rest} the cat"
    ids = torch.tensor(model.read(text, special=not chat).ids)
    rows = found["tokens"]
    document = rows[0]["token"], rows[-1]["token"] + 1
    shown = [(row["start_character"], row["stop_character"]) for row in rows]
    assert "".join(DOCUMENT[slice(*span)] for span in shown) == DOCUMENT.rstrip()
    assert found["answer_tokens"][1] == len(ids)
    answer = library.lens.Answer(slice(*found["answer_tokens"]))
    traced = library.lens.trace(model, ids, answer, document, hops=2)
    for measure, shares in traced.shares.items():
        own = torch.tensor([row[measure] for row in rows]).double()
        expected = shares[:, slice(*document)].T
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-6)
        assert found["between"][measure][1] == pytest.approx(traced.between(measure, 1), abs=1e-6)
    assert [len(row["difference"]) for row in rows] == [3] * len(rows)
    orders = {
        f"{measure}, {name}": traced.ranked(measure, hops)
        for measure in ("attention", "moved", "toward")
        for hops, name in ((0, "directly"), (2, "through 2 hops"))
    }
    lost = library.lens.deletion(model, ids, answer, orders, steps=2)
    assert found["deleted"]["counts"] == list(lost.counts)
    for order, change in lost.changes.items():
        assert found["deleted"]["changes"][order] == pytest.approx(change.tolist(), abs=1e-6)
    assert found["forwards"] == 3 + 1 + len(lost.counts) * (8 + 3)


def test_tokens_are_shown_in_the_terminal_and_written_as_a_page(regard, tmp_path, monkeypatch):
    text = story(6125).text
    context, question = text[: text.rindex(" barn.")].rsplit("\n\n", 1)
    path, out = tmp_path / "story.txt", tmp_path / "page.html"
    path.write_text(f"{context} <&")
    command = ("trace", "--file", path, "--question", question, "--tokens", 1, "--steps", 2)
    done = regard(*command, "--measure", "toward", "--out", out)
    assert (done.status, done.err) == (0, "")
    words = " ".join(done.out.split())
    assert "Answer barn" in words
    assert "The document, by toward, through 1 hop" in words
    first = done.out.split("in the text")[1].splitlines()[1]
    assert "barn" in first
    assert " opens offline in a browser" in words
    page = out.read_text("utf-8")
    assert page.count("<i id=") > 100
    assert "<script" not in page
    assert "http" not in page
    assert "&lt;&amp;" in page
    for measure in ("attention", "difference", "moved", "toward"):
        assert page.count(f'id="m-{measure}"') == 1
        assert page.count(f'class="list view {measure}-1"') == 1
    plain = html.unescape(re.sub(r"<[^>]+>", "", page.split('<div class="text">')[1]))
    shown = plain.split("Question and answer")[0].replace("↵", "")
    assert "".join(shown.split()) == "".join(f"{context} <&".split())
    monkeypatch.setenv("COLUMNS", "40")
    narrow = regard(*command, "--steps", 0).out
    assert max(map(len, narrow.splitlines())) <= 40
    assert not re.search(r"\d…", narrow)  # no number is cut
    assert "What the answer loses" not in narrow


def test_the_document_is_not_replaced_by_its_page(misused, document):
    line = misused("trace", "--file", document, "--question", "?", "--out", document)
    assert "is the document, which would be lost" in line


def test_the_page_has_the_model_s_own_answer_as_it_is_decoded(regard, folders, document, tmp_path):
    out = tmp_path / "trace.html"
    asked = ("--file", document, "--question", QUESTION, "--tokens", 5, "--steps", 0, "--json")
    said = json.loads(regard("trace", folders["plain"], *asked, "--out", out).out)["answer"]
    shown = re.sub("<[^>]*>", "", out.read_text().split("Question and answer")[1])
    text = html.unescape(shown.split("The tokens with most")[0]).replace("↵", "")
    assert text.strip().endswith(said.rstrip("\ufffd").strip())
