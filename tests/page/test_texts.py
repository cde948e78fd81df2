"""The HTTP interface: reading texts, and keeping them open."""

import json

import pytest
import torch
from support.explorer import address

from regard.gpt import GPT, CharTokenizer, GPTConfig
from regard.page import RecordingSubject
from regard.page._interface import BODY
from regard.page.subjects import CHARACTERS, ModelSubject


def test_reading_a_text_opens_a_run(shared, network):
    _, tokenizer = network
    run = shared.post("/api/runs", json={"text": "the dog"}).json()
    assert run["text"] == "the dog"
    assert shared.get(f"/api/runs/{run['id']}").json() == run
    assert run["length"] == len(tokenizer.encode("the dog"))


def test_the_same_text_is_the_same_run(client, subject, ask, network):
    run = client.post("/api/runs", json={"text": "the dog"}).json()
    assert client.post("/api/runs", json={"text": "the dog"}).json() == run
    other = ask(ModelSubject(*network, title="anew"))  # a server that was started again
    assert other.post("/api/runs", json={"text": "the dog"}).json()["id"] == run["id"]


@pytest.mark.parametrize(
    "text",
    ["a\u202eb", "</script><img src=x>", "\x00", "😀 שלום", "\n\t", " ", "a\ufeff"],
)
def test_any_text_comes_back_as_it_was(shared, text):
    answer = shared.post("/api/runs", json={"text": text})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    run = answer.json()
    assert run["text"] == text
    assert all(token["label"].isprintable() for token in run["tokens"])


def test_line_ends_and_a_byte_order_mark_are_those_of_training(shared):
    run = shared.post("/api/runs", json={"text": "\ufeffthe\r\ndog\r"}).json()
    assert run["text"] == "the\ndog\n"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"text": ""}, 422, "the text is empty"),
        ({"text": "\ufeff"}, 422, "the text is empty"),
        ({"text": "x" * (CHARACTERS + 1)}, 422, f"{CHARACTERS:,}"),
        ({"text": None}, 422, "text"),
        ({"text": 7}, 422, "text"),
        ({}, 422, "text"),
        ([], 422, ""),
        (None, 422, ""),
    ],
)
def test_texts_that_are_refused(shared, refused, body, status, message):
    assert message in refused(shared.post("/api/runs", json=body), status)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"text": "\xff"}', b'{"text": "\\ud800"}', b"[" * 10_000, b"\x00"]
)
def test_bodies_that_are_no_json(shared, refused, body):
    answer = shared.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    refused(answer, answer.status_code)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request's body is not JSON"),
        (b"[]", "the request's body is not a JSON object; send it as application/json"),
        (b'{"text": "\\ud800"}', "text is not Unicode: it has half of a pair that stands for one"),
        (b'{"text": 7}', "text is 7, but must be text"),
        (b"{}", "text is missing"),
        (b'{"text": ["' + b"x" * 99 + b'"]}', f"text is ['{'x' * 37}…, but must be text"),
    ],
)
def test_bodies_are_refused_in_a_sentence(shared, refused, body, message):
    answer = shared.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert refused(answer, 422).startswith(message)


def test_the_page_has_a_head(shared):
    answer = shared.head("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content == b""


def test_a_text_of_the_greatest_length_is_taken(ask):
    model = GPT(GPTConfig(vocab_size=1, context=31, layers=1, heads=1, dim=4))
    client = ask(ModelSubject(model, CharTokenizer("é"), title="a letter"))
    run = client.post("/api/runs", json={"text": "é" * CHARACTERS}).json()
    assert run["length"] == 31
    assert "the first 31" in run["notes"][0]


def test_a_body_that_is_too_large_is_refused_unread(shared, refused):
    body = json.dumps({"text": "x" * BODY})
    message = refused(shared.post("/api/runs", content=body), 413)
    assert f"{BODY:,} bytes" in message


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "٣"])
def test_a_body_of_no_known_length_is_refused(shared, length):
    headers = {"Content-Length": length.encode(), "Content-Type": "application/json"}
    answer = shared.post("/api/runs", content=b'{"text": "a"}', headers=headers)
    assert answer.status_code in {400, 413}


def test_a_body_in_pieces_is_not_read_beyond_the_limit(shared, refused):
    """Its length is not declared."""
    read = 0

    def pieces():
        nonlocal read
        yield b'{"text": "'
        for _ in range(200):
            read += 2**16
            yield b"x" * 2**16
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    refused(shared.post("/api/runs", content=pieces(), headers=headers), 413)


@pytest.mark.parametrize(
    ("path", "body"),
    [("", {"text": "a"}), ("/1/append", {"token": 1}), ("/1/generate", {"tokens": 1})],
)
def test_a_recording_takes_no_text(shared_reader, refused, path, body):
    assert "recording" in refused(shared_reader.post(f"/api/runs{path}", json=body), 422)


def test_ids_are_stable_while_others_open(client, first):
    row = address(first["id"], "row", layer=0, head=0, query=3)
    before = client.get(row).content
    for n in range(12):
        client.post("/api/runs", json={"text": f"the cat {n}"})
        assert client.get(row).content == before


def test_an_evicted_text_can_be_opened_again(client, refused):
    run = client.post("/api/runs", json={"text": "the cat"}).json()
    for n in range(16):
        client.post("/api/runs", json={"text": f"the dog {n}"})
    assert "open it again" in refused(client.get(f"/api/runs/{run['id']}"), 404)
    assert client.post("/api/runs", json={"text": "the cat"}).json() == run


def test_a_recording_that_was_freed_is_gone_and_it_is_said(ask, make_recording, refused):

    recording = make_recording([torch.randn(2, 1, 2, 7, 5)])
    reader = ask(RecordingSubject(recording, title="x"))
    assert reader.get(address("0", "row", layer=0, head=0, query=1)).status_code == 200
    recording.free()
    answer = reader.get(address("0", "row", layer=0, head=1, query=1))
    assert answer.status_code in {200, 410}
    if answer.status_code == 410:
        refused(answer, 410)
    heads = reader.get(address("0", "heads"))
    assert heads.status_code == 200
    json.loads(heads.text.splitlines()[0])
