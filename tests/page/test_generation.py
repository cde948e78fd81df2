"""The HTTP interface: appending tokens and generating them."""

import pytest
import torch
from support.explorer import address

from regard.gpt import Sampling, stream
from regard.page.subjects import GENERATED

TEXT = "the cat sat on the mat, the dog sat on the cat"


def test_appending_gives_what_the_model_gives_for_the_longer_text(client, first, floats):
    token = first["next"][3]
    longer = client.post(f"/api/runs/{first['id']}/append", json={"token": token["token"]}).json()
    assert longer["length"] == first["length"] + 1
    assert longer["tokens"] == [
        *first["tokens"],
        {name: token[name] for name in ("text", "label")},
    ]
    assert longer["id"] != first["id"]
    again = client.post(f"/api/runs/{first['id']}/append", json={"token": token["token"]}).json()
    assert again == longer
    # What was there attends as before: attention is causal.
    before = floats(client.get(address(first["id"], "row", layer=1, head=2, query=7)))
    after = floats(client.get(address(longer["id"], "row", layer=1, head=2, query=7)))
    torch.testing.assert_close(after[:-1], before)
    assert after[-1] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"token": 263}, "token 263 is not one of 0 … 262"),
        ({"token": -1}, "token"),
        ({"token": 2**40}, "token"),
        ({"token": "x"}, "token"),
        ({"token": 1.5}, "token"),
        ({}, "token"),
    ],
)
def test_tokens_that_are_refused(shared, shared_first, refused, body, message):
    assert message in refused(shared.post(f"/api/runs/{shared_first['id']}/append", json=body), 422)


def test_generation_draws_what_the_model_draws(client, first, network, lines):
    model, tokenizer = network
    ids = tokenizer.encode(TEXT)
    expected = [
        int(token)
        for token in stream(
            model,
            torch.tensor(ids),
            tokens=7,
            sampling=Sampling(temperature=0.9, seed=5),
        )
    ]
    body = {"tokens": 7, "temperature": 0.9, "seed": 5}
    *drawn, last = lines(client.post(f"/api/runs/{first['id']}/generate", json=body))
    assert [line["token"] for line in drawn] == expected
    assert all(set(line) == {"token", "text", "label"} for line in drawn)
    run = last["run"]
    assert run["text"] == tokenizer.decode([*ids, *expected][-31:])
    assert client.get(f"/api/runs/{run['id']}").json() == run
    assert run["tokens"][first["length"] :] == [
        {name: line[name] for name in ("text", "label")} for line in drawn
    ]


def test_generation_at_temperature_0_takes_the_likeliest(client, first, lines):
    body = {"tokens": 1, "temperature": 0}
    drawn, last = lines(client.post(f"/api/runs/{first['id']}/generate", json=body))
    assert drawn["token"] == first["next"][0]["token"]
    appended = client.post(f"/api/runs/{first['id']}/append", json={"token": drawn["token"]}).json()
    assert last["run"] == appended


def test_a_run_that_outgrows_the_context_keeps_its_end_and_says_so(client, first, lines):
    *drawn, last = lines(client.post(f"/api/runs/{first['id']}/generate", json={"tokens": 40}))
    assert len(drawn) == 40
    assert last["run"]["length"] == 31
    assert "the context is full" in last["run"]["notes"][0]
    assert [t["label"] for t in last["run"]["tokens"]] == [line["label"] for line in drawn][-31:]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": GENERATED + 1}, "tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"tokens": "many"}, "tokens"),
    ],
)
def test_generation_that_is_refused(shared, shared_first, refused, body, message):
    assert message in refused(
        shared.post(f"/api/runs/{shared_first['id']}/generate", json=body), 422
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": "warm"}, "temperature is 'warm', but must be a number"),
        ({"temperature": 101}, "temperature is 101, but must be at most 100"),
        ({"tokens": 1.5}, "tokens is 1.5, but must be a whole number"),
        ({"seed": []}, "seed is [], but must be a whole number"),
    ],
)
def test_how_to_generate_is_refused_in_a_sentence_of_ours(
    shared, shared_first, refused, body, message
):
    answer = shared.post(f"/api/runs/{shared_first['id']}/generate", json=body)
    assert refused(answer, 422).startswith(message)


@pytest.mark.parametrize("temperature", ["NaN", "Infinity", "1e999"])
def test_temperatures_that_are_no_numbers(shared, shared_first, refused, temperature):
    body = f'{{"temperature": {temperature}}}'
    headers = {"Content-Type": "application/json"}
    path = f"/api/runs/{shared_first['id']}/generate"
    refused(shared.post(path, content=body, headers=headers), 422)
