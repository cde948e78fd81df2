"""The commands on models of transformers, and options that only some models have."""

import re

import pytest
import torch
from support import small_models
from transformers import AutoTokenizer

import regard as library
from regard.nn import MultiHeadAttention

TEXT = "the cat sat on the mat, the dog sat on the cat"
READING = ["explain", "effects", "explore", "report", "generate"]


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """Folder of a Llama, whose tokenizer begins every text with "<s>"."""
    reads = small_models.tokenizer(TEXT, adds=True)
    return small_models.save_llama(tmp_path_factory.mktemp("llama"), reads)


@pytest.fixture(scope="session")
def chatty(tmp_path_factory):
    """Folder of the same Llama, with a chat template."""
    reads = small_models.tokenizer(TEXT, template=small_models.CHAT)
    return small_models.save_llama(tmp_path_factory.mktemp("chatty"), reads)


@pytest.fixture(scope="session")
def broken(llama, tmp_path_factory):
    """Folder of the same Llama, whose logits are NaN."""
    folder = tmp_path_factory.mktemp("broken")
    model = library.models.open(llama)
    torch.nn.init.constant_(model.module.model.norm.weight, float("nan"))
    model.module.save_pretrained(folder)
    model.tokenizer.inner.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Folder of an encoder."""
    return small_models.save_bert(tmp_path_factory.mktemp("bert"), small_models.tokenizer(TEXT))


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Folder of a recording."""
    folder = tmp_path_factory.mktemp("kept") / "a recording"
    with library.record() as recording, torch.no_grad():
        MultiHeadAttention(6, 2, mask=library.causal())(torch.randn(1, 5, 6))
    recording.save(folder)
    return folder


@pytest.mark.parametrize("command", READING)
def test_a_lone_argument_that_names_a_model_is_refused_with_the_command_meant(
    misused, model, command
):
    for name in (str(model), "owner/model", "a/path/to/model.gguf", "ollama:llama3.2"):
        line = misused(command, name)
        assert f"{name} names a model, and the argument is the text: " in line
        assert f": regard {command} --model {name} TEXT; " in line


@pytest.mark.parametrize("command", READING)
def test_a_lone_argument_that_is_a_recording_is_refused_with_the_command_meant(
    misused, kept, command
):
    line = misused(command, kept)
    shows = command if command in {"explore", "report"} else "explore"
    assert f"{kept} is a recording, and the argument is the text: " in line
    assert line.endswith(f": regard {shows} --recording '{kept}'\n")  # its name has a space


def test_with_a_model_or_in_a_file_any_text_is_one(regard, misused, model, tmp_path):
    assert regard("explain", "owner/model", "--model", model).status == 0
    file = tmp_path / "text.txt"
    file.write_text("owner/model")
    assert regard("generate", "--file", file, "--tokens", 1).status == 0
    assert regard("explain", "the cat or a dog/two").status == 0
    assert "the text is empty" in misused("explain", "")


def test_a_text_that_no_path_can_be_is_a_text(regard):
    """Its characters take 400 bytes, and a name has 255."""
    assert regard("explain", "☃" * 100 + "é" * 50).status == 0


@pytest.mark.parametrize("command", ["explore", "report"])
@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("a text",), "a text"),
        (("--file", __file__), "a text"),
        (("--model", "smollm2"), "--model"),
        (("--dtype", "bfloat16"), "--dtype"),
        (("--weights", "int8"), "--weights"),
        (("--fetch",), "--fetch"),
        (("--chat",), "--chat"),
        (("--system", "Be brief."), "--system"),
        (("--no-bos",), "--no-bos"),
    ],
    ids=str,
)
def test_a_recording_takes_no_option_of_a_model(misused, kept, command, options, name):
    line = misused(command, "--recording", kept, *options)
    assert line == f"regard: a recording has no model, with which {name} goes; leave it out\n"


@pytest.mark.parametrize("command", READING)
def test_a_template_is_asked_for_and_must_be_there(misused, llama, model, command):
    for folder in (llama, model):
        line = misused(command, "the cat", "--model", folder, "--chat")
        assert f"--chat is True, but {folder.name} has no chat template; leave it out" in line
        line = misused(command, "the cat", "--model", folder, "--system", "Be brief.")
        assert "--system goes with --chat: only a chat template has a place for it" in line


def test_a_template_surrounds_the_text_where_asked_for(regard, chatty):
    whole = regard("explain", TEXT, "--model", chatty).out
    assert "in grey" not in whole
    assert "assistant" not in whole.replace("│", "")
    said = regard("explain", TEXT, "--model", chatty, "--chat", "--system", "sat").out
    assert "<system>sat<user>the cat sat" in said.replace("│", "").replace("\n", "")
    reads = AutoTokenizer.from_pretrained(chatty)
    count = len(reads(f"<system>sat<user>{TEXT}<assistant>").input_ids)
    own = len(reads("sat").input_ids) + len(reads(TEXT).input_ids)
    note = f"{count - own} of the {count} tokens are the chat template's, in grey"
    assert note in said


def test_the_answer_to_a_message_stands_alone(regard, chatty):
    command = ("generate", "--tokens", 7, "--temperature", 0, "--model", chatty)
    answer = regard(*command, "the cat", "--chat").out
    assert f"<user>the cat<assistant>{answer}" == regard(*command, "<user>the cat<assistant>").out


@pytest.mark.parametrize("command", ["explain", "effects"])
def test_tokens_that_the_tokenizer_adds_are_said_and_may_be_left_out(regard, llama, command):
    count = len(AutoTokenizer.from_pretrained(llama)(TEXT, add_special_tokens=False).input_ids)
    out = regard(command, TEXT, "--model", llama).out
    assert f"1 of the {count + 1} tokens is added by the tokenizer, in grey" in out
    assert "<s>" in out
    out = regard(command, TEXT, "--model", llama, "--no-bos").out
    assert "added by the tokenizer" not in out
    assert "<s>" not in out


def test_added_tokens_are_grey(regard, llama, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[2m<s>\x1b[0m" in regard("explain", TEXT, "--model", llama).out


def test_generation_begins_as_the_tokenizer_does(regard, llama):
    def drawn(*options):
        command = ("generate", TEXT, "--tokens", 9, "--temperature", 0, "--model", llama)
        return regard(*command, *options).out

    model = library.models.open(llama)
    for special, options in ((True, ()), (False, ("--no-bos",))):
        ids = torch.tensor([model.read(TEXT, special=special).ids])
        with torch.no_grad():
            for _ in range(9):
                ids = torch.cat([ids, model.module(ids).logits[:, -1:].argmax(-1)], dim=-1)
        assert drawn(*options) == f"{TEXT}{model.tokenizer.decode(ids[0, -9:].tolist())}\n"


def test_what_becomes_of_the_past_is_chosen_for_models_of_regard(misused, llama):
    line = misused("generate", "the", "--past", "refuse", "--model", llama)
    assert "--past refuse is for models of regard: leave it out" in line


def test_an_encoder_has_no_next_token(regard, misused, bert, tmp_path):
    document = tmp_path / "doc.txt"
    document.write_text(TEXT)
    commands = {
        "effects": [TEXT, "--model", bert],
        "generate": [TEXT, "--model", bert],
        "trace": [bert, "--file", document, "--question", "the"],
    }
    for command, arguments in commands.items():
        line = misused(command, *arguments)
        assert f"is an encoder, which has no next token, as regard {command} needs one" in line
    done = regard("explain", TEXT, "--model", bert)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{bert.name}: 2 layers × 3 heads, context 101\n")
    assert "the model expects" not in done.out
    assert regard("explain", TEXT, "--model", bert, "--layer", 1, "--head", 2).status == 0


def test_the_figures_of_an_encoder_are_its_own(regard, bert):
    """Each token sees every other, the later ones too."""
    model = library.models.open(bert)
    ids = torch.tensor([model.read(TEXT).ids])
    with library.record(model) as recording, torch.no_grad():
        model.module(ids)
    weight, key = recording[1].dense()[0, 2, 0].max(-1)
    out = regard("explain", TEXT, "--model", bert, "--layer", 1, "--head", 2, "--query", 0).out
    row = re.search(r"^ +0 .*$", out[out.index("attends most to") :], flags=re.MULTILINE)[0]
    assert f" {float(weight):.2f}" in row
    assert f" {int(key)} " in row


def test_little_memory_changes_nothing_that_explain_and_effects_say(regard, llama, monkeypatch):
    """They read while the model runs, and keep one layer at most."""
    commands = [("explain",), ("effects",), ("explain", "--layer", 1, "--head", 2)]
    said = []
    for free in (2**40, 1001):
        monkeypatch.setattr("regard.models.language_model.free_memory", lambda free=free: free)
        done = [regard(*command, TEXT, "--model", llama) for command in commands]
        assert [(one.status, one.err) for one in done] == [(0, "")] * 3
        said.append([one.out for one in done])
    assert said[0] == said[1]


@pytest.mark.parametrize("command", READING)
def test_a_damaged_gguf_is_named_with_the_cure(misused, tmp_path, command):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\0\0\0" + b"\1" * 90)
    line = misused(command, "the", "--model", cut)
    assert f"{cut} is damaged: what its header says does not fit its 98 bytes" in line
    assert line.endswith("fetch it again\n")


@pytest.mark.parametrize("command", READING)
def test_a_dtype_is_one_of_floating_point_of_another_model(misused, llama, model, command):
    for dtype in ("float31", "int8", "nn"):
        line = misused(command, "the", "--model", llama, "--dtype", dtype)
        assert f"--dtype is {dtype!r}; expected float32, bfloat16, float16 or float64" in line
    line = misused(command, "the", "--model", model, "--dtype", "bfloat16")
    assert "--dtype is for other models; leave it out" in line
    both = ("--weights", "int8", "--dtype", "bfloat16")
    assert "--dtype goes without weights" in misused(command, "the", "--model", llama, *both)


@pytest.mark.parametrize("name", ["llama", "own"])
@pytest.mark.parametrize("command", ["explain", "effects"])
def test_weights_are_read_as_int8_where_asked_for(regard, llama, model, command, name):
    done = regard(
        command, "the cat", "--model", {"llama": llama, "own": model}[name], "--weights", "int8"
    )
    assert done.status == 0
    assert "not checked" not in done.out  # the matrices are known


def test_weights_are_in_the_dtype_asked_for(regard, llama):
    wide, narrow = (
        regard("explain", TEXT, "--model", llama, "--layer", 1, "--head", 2, "--dtype", dtype).out
        for dtype in ("float32", "bfloat16")
    )
    assert wide == regard("explain", TEXT, "--model", llama, "--layer", 1, "--head", 2).out
    assert wide != narrow


@pytest.mark.parametrize("command", ["explain", "effects", "generate", "report"])
def test_a_model_whose_weights_are_no_numbers_is_refused_in_one_line(misused, broken, command):
    assert re.search("NaN|not numbers|not finite", misused(command, TEXT, "--model", broken))


@pytest.mark.parametrize("by", ["tokens", "passages"])
@pytest.mark.parametrize("answer", [(), ("--answer", "the cat")])
def test_neither_can_it_answer_a_question(misused, broken, tmp_path, answer, by):
    document = tmp_path / "doc.txt"
    document.write_text(TEXT)
    command = ("trace", broken, "--file", document, "--question", "the", "--by", by)
    assert re.search("NaN|not numbers|not finite", misused(*command, *answer))
