import pytest
import torch

from regard.gpt import Sampling, generate, generate_texts, load, write_gpt2
from regard.gpt.config import HAS_READ


def test_it_continues_the_text(regard, model):
    done = regard("generate", "the cat", "--tokens", 12, "--seed", 3, "--model", model)
    assert (done.status, done.err) == (0, "")
    network, tokenizer = load(model)
    ids = torch.tensor(tokenizer.encode("the cat"))
    drawn = generate(network, ids, tokens=12, sampling=Sampling(seed=3))
    assert done.out == tokenizer.decode(drawn.tolist()) + "\n"


FAR = "The stock market fell sharply on Monday as investors"
NOTE = "this text is unlike them, and what follows is a guess."


def test_outside_of_its_world_the_model_says_so(regard, model):
    done = regard("generate", FAR, "--tokens", 3)
    assert done.status == 0
    assert done.out.startswith(FAR)
    assert done.err.startswith("regard: The model has read little but made-up stories")
    assert done.err.endswith(f"{NOTE}\n")
    assert done.err.count("\n") == 1
    several = regard("generate", "Once upon a time", FAR, "--tokens", 3).err
    note = done.err.removeprefix("regard: ")
    assert several == f"regard: 'The stock market fell sharply on …': {note}"  # says which
    assert regard("generate", "Once upon a time", "--tokens", 3).err == f"regard: {HAS_READ}\n"
    assert regard("generate", FAR, "--tokens", 3, "--model", model).err == ""  # another model


@pytest.mark.parametrize(
    "command", ["explain", pytest.param("effects", marks=pytest.mark.thorough)]
)
def test_what_is_said_of_a_text_outside_of_its_world_is_called_a_guess(regard, model, command):
    assert NOTE in " ".join(regard(command, FAR).out.split())
    assert NOTE not in " ".join(regard(command).out.split())
    assert NOTE not in " ".join(regard(command, FAR, "--model", model).out.split())


def test_the_same_seed_draws_the_same_text_and_another_does_not(regard, model):
    texts = [
        regard("generate", "the", "--tokens", 20, "--seed", seed, "--model", model).out
        for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_temperature_0_takes_the_likeliest_token(regard, model):
    def drawn(*arguments):
        return regard("generate", "the", "--tokens", 20, *arguments, "--model", model).out

    cold = drawn("--temperature", 0, "--seed", 1)
    assert cold == drawn("--temperature", 0, "--seed", 2) == drawn("--top-k", 1)


def test_a_prompt_longer_than_the_context_is_continued(regard, model):
    done = regard("generate", "the cat " * 40, "--tokens", 2, "--model", model)
    assert done.status == 0
    assert done.out.startswith("the cat " * 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", -1), "regard: --tokens is -1"),
        (("--tokens", 10**23), f"tokens is {10**23}; expected 0 to {2**50}"),
        (("--temperature", -1), "--temperature is -1"),
        (("--temperature", "nan"), "--temperature is nan"),
        (("--top-k", 0), "--top-k is 0"),
        (("--top-p", 0), "--top-p is 0"),
        (("--min-p", 2), "--min-p is 2"),
        (("--repetition-penalty", 0), "--repetition-penalty is 0"),
        (("--seed", 2**64), "--seed is 18446744073709551616"),
        (("--seed", -1), "--seed is -1"),
        (("--past", "wrap"), "--past is 'wrap': expected one of slide, refuse"),
        (("--tokens", 10_000, "--past", "refuse"), "do not fit into the model's context"),
        (("--stop", "\udce9"), "--stop is not UTF-8 text: byte 0xe9 at offset 0"),
        (("--stop", ""), "expected a list of strings, none of them empty"),
        (("",), "the text is empty"),
    ],
)
def test_numbers_out_of_range_are_refused_in_one_line(misused, model, arguments, message):
    assert message in misused("generate", "the", "--model", model, *arguments)


def test_every_option_reaches_the_sampling(regard, model):
    done = regard(
        *("generate", "the cat", "--tokens", 20, "--seed", 3, "--temperature", 3, "--top-k", 50),
        *("--top-p", 0.9, "--min-p", 0.01, "--repetition-penalty", 1.5, "--model", model),
    )
    sampling = Sampling(
        seed=3, temperature=3.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.5
    )
    (text,) = generate_texts(*load(model), ["the cat"], tokens=20, sampling=sampling)
    assert done.out == f"the cat{text}\n"


def test_several_texts_are_each_continued_as_if_alone(regard, model):
    def drawn(*prompts):
        return regard("generate", *prompts, "--tokens", 9, "--seed", 1, "--model", model).out

    prompts = ("the cat sat", "a", "the dog")
    assert drawn(*prompts) == "\n".join(drawn(prompt) for prompt in prompts)


def test_a_text_ends_before_a_stop_string(regard, model):
    def drawn(*arguments):
        return regard("generate", "the", "--tokens", 30, "--seed", 5, "--model", model, *arguments)

    whole = drawn().out
    stop, other = whole[9], whole[12:14]
    assert drawn("--stop", stop, "--stop", other).out == whole[: 3 + whole[3:].find(stop)] + "\n"


def test_a_gpt2_in_the_layout_of_transformers_is_taken(regard, model, tmp_path):
    network, tokenizer = load(model)
    write_gpt2(network, tmp_path, tokenizer)
    command = ("generate", "the cat", "--tokens", 9, "--seed", 1, "--model")
    assert regard(*command, tmp_path) == regard(*command, model)


def test_a_lack_of_memory_for_tokens_is_reported(regard, model):
    done = regard("generate", "the", "--tokens", 10**14, "--model", model)
    assert done.status == 2
    assert done.err == (
        "regard: this needs more memory than there is: lower --tokens, or give fewer texts\n"
    )


def test_weights_are_kept_as_int8_where_asked_for(regard, misused, model):
    rest = ("the", "--tokens", 9, "--temperature", 0, "--model", model)
    network, tokenizer = load(model, weights="int8")
    ids = torch.tensor(tokenizer.encode("the"))
    drawn = generate(network, ids, tokens=9, sampling=Sampling(temperature=0.0))
    done = regard("generate", *rest, "--weights", "int8")
    assert done.out == tokenizer.decode(drawn.tolist()) + "\n"
    assert "--weights is 'int4': expected int8" in misused("generate", *rest, "--weights", "int4")
