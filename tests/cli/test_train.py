import inspect
import signal
from dataclasses import fields

import pytest
import torch

from regard._extras import install
from regard.cli.train import train
from regard.gpt import GPT, GPTConfig, TrainConfig, load, load_training, open_corpus, recipe_of

SMALL = [
    "--vocab-size", "257", "--context", "8", "--layers", "1", "--heads", "2", "--dim", "6",
    "--steps", "2", "--batch", "2", "--warmup", "0", "--evaluate-every", "1",
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("the cat sat on the mat\n" * 40, "utf-8")
    return file


@pytest.mark.parametrize("config", [GPTConfig, TrainConfig])
def test_every_field_is_an_option_with_its_own_default_and_help(regard, config):
    parameters = inspect.signature(train).parameters
    help_text = " ".join(regard("train", "--help").out.replace("│", " ").split())
    for field in (one for one in fields(config) if one.metadata["on_command"]):
        assert parameters[field.name].default == field.default
        assert f"--{field.name.replace('_', '-')}" in help_text
        first_words = " ".join(field.metadata["help"].split()[:2])
        assert first_words in help_text


def test_it_trains_and_keeps_a_model(regard, corpus, tmp_path):
    out = tmp_path / "runs" / "mine"
    done = regard("train", "--out", out, "--text", corpus, *SMALL, "--no-bias", "--seed", 7)
    assert done.status == 0
    model, tokenizer = load(out)
    config = model.config
    assert (config.layers, config.heads, config.dim, config.context) == (1, 2, 6, 8)
    assert config.bias is False
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    record = load_training(out)
    assert record["config"]["seed"] == 7
    assert record["config"]["steps"] == 2
    size = sum(p.numel() for p in model.parameters())
    loss = record["validation_loss"]
    first, following = done.out.splitlines()
    assert first == f"{out}: {size:,} parameters, 2 updates, validation loss {loss:.4f}"
    assert following == f"Next: regard explore --model {out}"
    lines = [line for line in f"{done.out}\n{done.err}".splitlines() if str(tmp_path) not in line]
    assert sum("validation loss" in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_a_folder_of_texts_and_characters_as_tokens(regard, corpus, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    corpus.rename(folder / "one.txt")
    out = tmp_path / "out"
    done = regard("train", "--out", out, "--text", folder, *SMALL, "--tokenizer", "char")
    assert done.status == 0
    assert load(out)[1].vocab_size == len(set("the cat sat on the mat\n"))


def test_a_model_is_replaced_only_with_overwrite(regard, misused, corpus, tmp_path):
    out = tmp_path / "out"
    assert regard("train", "--out", out, "--text", corpus, *SMALL).status == 0
    before = (out / "model.safetensors").read_bytes()
    line = misused("train", "--out", out, "--text", corpus, *SMALL)
    assert f"{out} already holds a model: choose another --out, or add --overwrite" in line
    assert (out / "model.safetensors").read_bytes() == before

    wider = ["--dim", "10"]
    done = regard("train", "--out", out, "--text", corpus, *SMALL, *wider, "--overwrite")
    assert done.status == 0
    assert load(out)[0].config.dim == 10


def test_a_model_survives_an_overwrite_that_cannot_begin(regard, misused, corpus, tmp_path):
    out = tmp_path / "out"
    assert regard("train", "--out", out, "--text", corpus, *SMALL).status == 0
    missing = tmp_path / "missing.txt"
    misused("train", "--out", out, "--text", missing, *SMALL, "--overwrite")
    misused("train", "--out", out, "--text", corpus, *SMALL, "--dim", "7", "--overwrite")
    assert load(out)[0].config.dim == 6


def test_an_interruption_keeps_the_model_and_ends_with_130(regard, corpus, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.gpt.training.loop.mean_loss", interrupted)
    done = regard("train", "--out", tmp_path / "out", "--text", corpus, *SMALL)
    assert done.status == 130
    assert "1 update\n" in done.out
    assert done.out.endswith(f"Next: regard train --out {tmp_path / 'out'} --resume\n")
    load(tmp_path / "out")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("number", "usual", "status"),
    [
        (signal.SIGINT, signal.default_int_handler, 130),
        (signal.SIGTERM, signal.SIG_DFL, 143),
    ],
)
def test_the_status_tells_which_signal_ended_it(
    regard, corpus, tmp_path, monkeypatch, number, usual, status, times
):
    original = torch.nn.utils.get_total_norm

    def interrupted(*arguments):
        for _ in range(times):
            signal.raise_signal(number)
        return original(*arguments)

    monkeypatch.setattr(torch.nn.utils, "get_total_norm", interrupted)
    before = signal.signal(number, usual)
    try:
        done = regard("train", "--out", tmp_path / "out", "--text", corpus, *SMALL)
    finally:
        signal.signal(number, before)
    assert done.status == status
    assert (tmp_path / "out").exists() is (times == 1)  # twice waits for no update


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_of_another_launcher_are_sent_to_torchrun(
    regard, misused, corpus, tmp_path, monkeypatch, name
):
    out = tmp_path / "out"
    monkeypatch.setenv(name, "3")
    line = misused("train", "--out", out, "--text", corpus, *SMALL)
    assert f"{name}=3 in the environment says that a launcher has started 3 processes" in line
    assert "start `torchrun --nproc-per-node N -m regard train ...` once on each machine" in line
    assert not out.exists()
    monkeypatch.setenv(name, "1")
    assert regard("train", "--out", out, "--text", corpus, *SMALL).status == 0


def test_steps_alone_are_enough_for_a_short_try(regard, corpus, tmp_path):
    small = SMALL[: SMALL.index("--steps")]
    out = tmp_path / "out"
    assert regard("train", "--out", out, "--text", corpus, *small, "--steps", 20).status == 0
    assert recipe_of(out)[1].warmup == 2
    file = recipe(tmp_path, "steps = 10")
    done = regard("train", "--out", out, "--text", corpus, *small, "--config", file, "--overwrite")
    assert done.status == 0
    assert recipe_of(out)[1].warmup == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dim", 7), "--dim is 7 and does not divide by --heads 2"),
        (("--layers", 0), "regard: --layers is 0; expected a whole number"),
        (("--tokenizer", "word"), "--tokenizer is 'word'; expected bpe or char"),
        (("--warmup", 9), "--warmup is 9 of --steps 2 updates"),
        (("--vocab-size", 3), "--vocab-size is 3"),
        (("--context", 5000), "text"),
        (("--steps", "many"), "Invalid value for '--steps': 'many' is not a"),
        (("--device", "nowhere"), "--device is 'nowhere': expected cpu, or cuda"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(
    regard, corpus, tmp_path, arguments, message
):
    done = regard("train", "--out", tmp_path / "out", "--text", corpus, *SMALL, *arguments)
    assert done.status == 2
    assert message in done.err
    assert "RuntimeWarning" not in done.err


def test_an_out_folder_is_needed(misused):
    assert "Missing option '--out' (see regard train --help)" in misused("train")
    assert "'--out' requires an argument (see regard train --help)" in misused("train", "--out")
    assert "Invalid value for '--out': a path is empty" in misused("train", "--out", "")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_text_that_cannot_be_read(misused, tmp_path, content):
    file = tmp_path / "corpus.txt"
    if content is not None:
        file.write_bytes(content)
    assert str(file) in misused("train", "--out", tmp_path / "out", "--text", file, *SMALL)


@pytest.mark.parametrize("place", ["a file", "a folder not to be written in"])
def test_an_out_that_cannot_be_written_is_refused_before_training(
    misused, corpus, tmp_path, monkeypatch, place
):
    def untimely(*_):
        raise AssertionError("an update was made")

    monkeypatch.setattr("torch.optim.AdamW.step", untimely)
    out = tmp_path / "out"
    if place == "a file":
        out = corpus / "out"
    else:  # permissions would not hold back the superuser, whom tests may run as

        def refused(*, dir):  # noqa: A002 (tempfile's own name)
            raise PermissionError(13, "Permission denied", f"{dir}/tmp_a1b2c3d4")

        monkeypatch.setattr("tempfile.TemporaryFile", refused)
    assert f"regard: {out}: " in misused("train", "--out", out, "--text", corpus, *SMALL)


def test_an_out_that_is_a_file(misused, corpus):
    assert f"{corpus} is a file" in misused("train", "--out", corpus, "--text", corpus, *SMALL)


def recipe(tmp_path, content):
    file = tmp_path / "recipe.toml"
    file.write_text(content, "utf-8")
    return file


def test_a_file_sets_the_same_fields_and_the_command_line_wins(regard, corpus, tmp_path):
    file = recipe(
        tmp_path,
        "steps = 2\nwarmup = 0\n[gpt]\nlayers = 1\nheads = 2\ndim = 6\ncontext = 8\n"
        '[train]\ntokenizer = "char"\nbatch = 5\nlearning_rate = 1\nevaluate_every = 1\n',
    )
    out = tmp_path / "out"
    done = regard("train", "--out", out, "--text", corpus, "--config", file, "--batch", 3)
    assert done.status == 0
    gpt, train_config = recipe_of(out)
    assert (gpt.layers, gpt.heads, gpt.dim, gpt.context) == (1, 2, 6, 8)
    assert (train_config.tokenizer, train_config.steps) == ("char", 2)
    assert (train_config.batch, train_config.learning_rate) == (3, 1)
    assert train_config.clip == TrainConfig().clip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("stepz = 3", "has no field 'stepz'; did you mean 'steps'"),
        (
            "[gpt]\nlayer = 3",
            "section [gpt] has no field 'layer'; did you mean 'lay",
        ),
        ("[train]\nlayers = 3", "section [train] has no field 'layers'; did you mean"),
        ("[trains]\nsteps = 3", "has no section 'trains'; did you mean 'train'"),
        ("steps = 0", "steps in {file} is 0; expected a whole number >= 1"),
        ('steps = "many"', "steps in {file} is 'many'; expected a whole number"),
        ("[gpt]\ndim = 7\nheads = 2", "dim in {file} is 7 and does not divide by heads=2"),
        ("steps = ", "{file} is not a TOML file"),
        ("steps = " + 5000 * "1", "{file} is not a TOML file: Exceeds the limit"),
        ("steps = " + 100_000 * "[", "{file} is not a TOML file: brackets are nested too deep"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_config_file_that_does_not_fit_is_refused_in_one_line(
    misused, corpus, tmp_path, content, message
):
    file = tmp_path / "none.toml" if content is None else recipe(tmp_path, content)
    line = misused("train", "--out", tmp_path / "out", "--text", corpus, "--config", file)
    assert message.format(file=file) in line


def test_it_resumes_with_the_recipe_of_the_run(regard, misused, corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    line = misused("train", "--out", out, "--resume")
    assert "holds no checkpoint to resume from" in line

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    arguments = ("train", "--out", out, "--text", corpus, *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr("regard.gpt.training.loop.mean_loss", interrupted)
        assert regard(*arguments).status == 130
    assert load_training(out)["step"] == 1
    assert "add --overwrite, or go on with its training run by --resume" in misused(*arguments)
    line = misused(*arguments, "--resume", "--layers", 2)
    assert "--layers is 2 and the training run that is to be resumed has 1" in line
    file = recipe(tmp_path, "clip = 0.5")
    line = misused("train", "--out", out, "--resume", "--config", file)
    assert f"clip in {file} is 0.5 and the training run that is to be resumed has 1.0" in line
    assert "leave out one of them" in misused("train", "--out", out, "--resume", "--overwrite")
    done = regard("train", "--out", out, "--resume")
    assert done.status == 0
    assert "2 updates" in done.out
    assert "going on after update 1" in done.err


@pytest.mark.filterwarnings("default:.*metrics.jsonl")
def test_a_warning_is_shown_in_one_line(regard, corpus, tmp_path):
    out = tmp_path / "m"
    assert regard("train", "--out", out, "--text", corpus, *SMALL).status == 0
    path = out / "run" / "metrics.jsonl"
    path.write_bytes(b"")
    done = regard("train", "--out", out, "--resume")
    assert done.status == 0
    assert f"regard: {path}: the lines of update" in done.err
    assert "RuntimeWarning" not in done.err


def test_a_prepared_corpus_is_made_once_and_trained_on(regard, misused, corpus, tmp_path):
    folder = tmp_path / "prepared"
    done = regard("prepare", "--text", corpus, "--out", folder, "--vocab-size", 260)
    assert done.status == 0
    opened = open_corpus(folder)
    assert done.out == (
        f"{folder}: {len(opened.training):,} tokens to train on and {len(opened.validation):,} "
        "held out, of 260 kinds\n"
    )
    known = SMALL[2:]  # without the vocabulary, which is the corpus's
    assert regard("train", "--out", tmp_path / "a", "--corpus", folder, *known).status == 0
    assert load(tmp_path / "a")[0].config.vocab_size == 260
    assert "already exists" in misused("prepare", "--text", corpus, "--out", folder)
    again = regard("prepare", "--text", corpus, "--out", tmp_path / "b", "--tokenizer", folder)
    assert again.status == 0
    assert open_corpus(tmp_path / "b").tokenizer.to_json() == opened.tokenizer.to_json()
    assert "--tokenizer is words; expected bpe, char, or a folder" in misused(
        "prepare", "--text", corpus, "--out", tmp_path / "c", "--tokenizer", "words"
    )
    assert "--validation is 1.0" in misused(
        "prepare", "--text", corpus, "--out", tmp_path / "c", "--validation", 1
    )
    given = ("train", "--out", tmp_path / "d", "--corpus", folder)
    line = misused(*given, "--vocab-size", 400)
    assert f"--vocab-size is 400 and the corpus in {folder} was prepared with 260; leave" in line
    both = (*given, "--text", corpus)
    assert "the text is given twice" in misused(*both)


def test_a_vocabulary_that_a_corpus_was_asked_for_is_its_own(regard, misused, corpus, tmp_path):
    folder = tmp_path / "prepared"
    done = regard("prepare", "--text", corpus, "--out", folder, "--vocab-size", 5000)
    found = open_corpus(folder).tokenizer.vocab_size
    assert found < 5000
    assert f"of {found} kinds" in done.out
    command = ("train", "--out", tmp_path / "a", "--corpus", folder, *SMALL[2:])
    line = misused(*command, "--vocab-size", 999)
    assert (
        f"is 999 and the corpus in {folder} was prepared with 5000, of which it has {found}" in line
    )
    assert regard(*command, "--vocab-size", 5000).status == 0


def test_a_corpus_where_none_can_be_written(misused, corpus, tmp_path):
    line = misused("prepare", "--text", corpus, "--out", corpus / "c")
    assert f"{corpus}/c: the corpus could not be written, {corpus} is a file: nothing" in line


def test_files_that_are_no_text_are_passed_over_on_request(regard, misused, corpus, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    corpus.rename(texts / "one.txt")
    (texts / "two.gz").write_bytes(b"\x1f\x8b")
    out, prepared = tmp_path / "out", tmp_path / "prepared"
    for command in (("train", "--out", out, *SMALL), ("prepare", "--out", prepared)):
        assert "skip them by" in misused(*command, "--text", texts)
        done = regard(*command, "--text", texts, "--utf8-only")
        assert done.status == 0
        assert "skipped 1 of 2 files, which are not UTF-8 text: two.gz\n" in done.err
    again = ("train", "--out", out, "--text", texts, "--resume")
    assert "skip them by" in misused(*again)
    assert regard(*again, "--utf8-only").status == 0


def test_a_missing_tensorboard_is_named(misused, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.gpt.training.callbacks.find_spec", lambda name: None)
    arguments = ("train", "--out", tmp_path / "out", "--text", corpus, *SMALL, "--tensorboard")
    assert f"needs the library tensorboard: {install('trackers')}" in misused(*arguments)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("an array"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
        ),
    ],
)
def test_a_lack_of_memory_is_reported_with_the_cure(regard, corpus, tmp_path, monkeypatch, error):
    def lacking(*_, **__):
        raise error

    monkeypatch.setattr(GPT, "loss", lacking)
    done = regard("train", "--out", tmp_path / "m", "--text", corpus, *SMALL)
    assert done.status == 2
    assert done.err.splitlines()[-1] == (
        "regard: this needs more memory than there is: lower --batch and raise --accumulate, or "
        "choose a smaller model"
    )


def test_another_error_of_torch_is_no_lack_of_memory(regard, corpus, tmp_path, monkeypatch):
    def failing(*_, **__):
        raise RuntimeError("a defect")

    monkeypatch.setattr(GPT, "loss", failing)
    with pytest.raises(RuntimeError, match="a defect"):
        regard("train", "--out", tmp_path / "m", "--text", corpus, *SMALL)
