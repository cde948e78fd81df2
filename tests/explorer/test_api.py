"""The HTTP interface: what each address answers, and what it refuses."""

import json
from threading import Event
from urllib.parse import urlencode

import pytest
import torch

from regard.explorer._server import BODY
from regard.explorer.subjects import CHARACTERS, GENERATED, ModelSubject, RecordingSubject
from regard.gpt import Sampling, stream

TEXT = "the cat sat on the mat, the dog sat on the cat"
L, H = 13, 6
PLACE = {"layer": 1, "head": 4}


def address(name, what="", **fields):
    return f"/api/runs/{name}{what and '/' + what}?{urlencode(fields)}".removesuffix("?")


@pytest.fixture
def first(client):
    (name,) = client.get("/api/about").json()["runs"]
    return client.get(f"/api/runs/{name}").json()


# What is there


def test_health(client):
    assert client.get("/api/health").json() == {"ok": True}


def test_about_a_model(client):
    about = client.get("/api/about").json()
    (name,) = about.pop("runs")
    assert about.pop("example")
    assert about == {
        "title": "a model",
        "shape": "2 layers × 3 heads, context 31",
        "writes": True,
        "generates": True,
        "limits": {"characters": CHARACTERS, "tokens": 31, "generate": GENERATED},
    }
    assert client.get(f"/api/runs/{name}").json()["text"] == TEXT


def test_about_a_recording(reader):
    assert reader.get("/api/about").json() == {
        "title": "a recording",
        "shape": "2 layers × 6 heads",
        "writes": False,
        "generates": False,
        "example": None,
        "limits": {"characters": 0, "tokens": 0, "generate": 0},
        "runs": ["0", "1"],
    }


def test_a_run_is_described(client, first, network):
    _, tokenizer = network
    pieces = tokenizer.tokens(tokenizer.encode(TEXT))
    assert "".join(token["text"] for token in first["tokens"]) == TEXT
    assert [token["shown"] for token in first["tokens"]] == [p.replace(" ", "␣") for p in pieces]
    assert first["length"] == len(pieces)
    assert set(first) == {
        *("id", "title", "text", "tokens", "length", "causal", "layers", "next", "values", "notes")
    }
    assert [layer["heads"] for layer in first["layers"]] == [[0, 1, 2]] * 2
    assert first["notes"] == []


def test_heads_come_a_line_a_layer(reader, recorded, lines):
    scored = lines(reader.get(address("1", "heads")))
    assert scored == [recorded.run("1").scores(layer) for layer in range(2)]


@pytest.mark.parametrize("size", [None, 5, 2048])
def test_thumbnails(reader, padded, floats, size):
    fields = {"layer": 1} | ({} if size is None else {"size": size})
    answer = reader.get(address("0", "thumbnails", **fields))
    pictures = floats(answer, "X-Heads", "X-Rows", "X-Columns")
    side = min(size or 64, L)
    assert pictures.shape == (H, side, side)
    if side == L:
        torch.testing.assert_close(pictures.double(), padded.weights[1][0], rtol=1e-5, atol=2e-6)


def test_a_map(reader, padded, floats):
    fields = {"queries": "2,11", "keys": "3,10", "block": 1}
    window = floats(reader.get(address("1", "map", **PLACE, **fields)), "X-Rows", "X-Columns")
    expected = padded.weights[1][1, 4, 2:11, 3:10]
    torch.testing.assert_close(window.double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("what", "axis"), [("row", "query"), ("column", "key")])
@pytest.mark.parametrize(
    ("layer", "head"), [(1, 4), (0, "mean"), ("mean", "mean")], ids=["head", "layer", "model"]
)
def test_rows_and_columns(reader, padded, floats, what, axis, layer, head):
    given = floats(reader.get(address("1", what, layer=layer, head=head, **{axis: 9})))
    weights = torch.stack(padded.weights)[:, 1]  # (layers, H, L, L)
    weights = weights.mean(0) if layer == "mean" else weights[layer]
    weights = weights.mean(0) if head == "mean" else weights[head]
    expected = weights[9] if axis == "query" else weights[:, 9]
    torch.testing.assert_close(given.double(), expected, rtol=1e-5, atol=2e-6)


def test_cells_readouts_and_steps(reader, recorded, floats):
    run = recorded.run("1")
    cell = reader.get(address("1", "cell", **PLACE, query=9, key=7)).json()
    assert cell == run.cell(1, 4, 9, 7)
    numbers = floats(reader.get(address("1", "readouts", **PLACE))).view(4, L)
    assert torch.equal(numbers, run.readouts(1, 4).float())
    assert reader.get(address("1", "steps", **PLACE, query=9)).json() == run.steps(1, 4, 9)
    paged = {"first": 2, "count": 3, "picked": 11}
    answer = reader.get(address("1", "steps", **PLACE, query=9, **paged)).json()
    assert answer == run.steps(1, 4, 9, **paged)


@pytest.mark.parametrize("place", [(0, "mean"), ("mean", "mean")], ids=["layer", "model"])
def test_means_have_maps_cells_and_readouts(reader, recorded, floats, place):
    run = recorded.run("1")
    at = dict(zip(("layer", "head"), place, strict=True))
    cell = reader.get(address("1", "cell", **at, query=9, key=7)).json()
    assert cell == run.cell(*place, 9, 7)
    numbers = floats(reader.get(address("1", "readouts", **at))).view(4, L)
    assert torch.equal(numbers, run.readouts(*place).float())
    window = {"queries": "4,12", "keys": "0,8", "block": 2}
    cells = floats(reader.get(address("1", "map", **at, **window)), "X-Rows", "X-Columns")
    assert torch.equal(cells, run.map(*place, (4, 12), (0, 8), 2, Event()).float())


@pytest.mark.parametrize("query", [0, 3])
def test_a_query_that_sees_nothing_is_answered(reader, query):
    """Those of the padding; JSON knows no infinity."""
    steps = reader.get(address("1", "steps", **PLACE, query=query))
    cell = reader.get(address("1", "cell", **PLACE, query=query, key=0))
    assert steps.status_code == cell.status_code == 200
    assert steps.json()["logsumexp"] is cell.json()["logsumexp"] is None


# What is not


@pytest.mark.parametrize(
    ("what", "fields", "status", "said"),
    [
        ("", {}, 404, "open it again"),
        ("heads", {}, 404, "open it again"),
        ("steps", {**PLACE, "query": 1}, 404, "open it again"),
    ],
)
def test_a_run_that_is_not_open(client, refused, what, fields, status, said):
    assert said in refused(client.get(address("0123456789abcdef", what, **fields)), status)


WINDOW = {"queries": "0,13", "keys": "0,13", "block": 2}
REFUSED = [
    ("map", {**WINDOW, "layer": 2, "head": 0}, 404, "there is no layer 2; there are 0 … 1"),
    ("map", {**WINDOW, "layer": 1, "head": 6}, 404, "there is no head 6; there are 0 … 5"),
    ("map", {**WINDOW, **PLACE, "queries": "0,14"}, 422, "queries=0,14 is no range within 0,13"),
    ("map", {**WINDOW, **PLACE, "keys": "5,5"}, 422, "keys=5,5 is no range within 0,13"),
    ("map", {**WINDOW, **PLACE, "keys": "7,5"}, 422, "keys=7,5 is no range within 0,13"),
    ("map", {**WINDOW, **PLACE, "keys": "-1,5"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "keys": "1"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "keys": "1,2,3"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "keys": "1.0,2.0"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "block": 0}, 422, "block"),
    ("map", {**WINDOW, **PLACE, "block": 3}, 422, "block=3 is no power of two"),
    ("map", {**WINDOW, **PLACE, "block": 2**21}, 422, "block"),
    ("map", {**WINDOW, "layer": "mean", "head": 1}, 422, "ask for head=mean"),
    ("map", PLACE, 422, "queries"),
    ("thumbnails", {"layer": 2}, 404, "there is no layer 2"),
    ("thumbnails", {"layer": 0, "size": 0}, 422, "size"),
    ("thumbnails", {"layer": 0, "size": 1e99}, 422, "size"),
    ("row", {**PLACE, "query": 13}, 404, "there is no query 13; there are 0 … 12"),
    ("row", {**PLACE, "query": -1}, 422, "query"),
    ("row", {**PLACE, "query": "nan"}, 422, "query"),
    ("row", {**PLACE, "query": 10**30}, 422, "query"),
    ("row", {"layer": "mean", "head": 0, "query": 1}, 422, "ask for head=mean"),
    ("row", {"layer": 2, "head": "mean", "query": 1}, 404, "there is no layer 2"),
    ("row", {"layer": "Mean", "head": "mean", "query": 1}, 422, "layer"),
    ("row", {"layer": "0\n", "head": 0, "query": 1}, 422, "layer"),
    ("row", {"layer": "", "head": 0, "query": 1}, 422, "layer"),
    ("column", {**PLACE, "key": 13}, 404, "there is no key 13"),
    ("column", {**PLACE, "query": 1}, 422, "key"),
    ("cell", {**PLACE, "query": 1, "key": 13}, 404, "there is no key 13"),
    ("cell", {**PLACE, "query": 13, "key": 1}, 404, "there is no query 13"),
    ("cell", {"layer": "mean", "head": 1, "query": 1, "key": 1}, 422, "ask for head=mean"),
    ("readouts", {"layer": 0, "head": 6}, 404, "there is no head 6"),
    ("readouts", {"layer": "mean", "head": 2}, 422, "ask for head=mean"),
    ("steps", {**PLACE, "query": 13}, 404, "there is no query 13"),
    ("steps", {**PLACE, "query": 1, "picked": 13}, 404, "there is no key 13"),
    ("steps", {**PLACE, "query": 1, "count": 0}, 422, "count"),
    ("steps", {**PLACE, "query": 1, "count": 257}, 422, "count"),
    ("steps", {"layer": 0, "head": "mean", "query": 1}, 422, "head"),
]


def test_a_map_of_too_many_cells_is_refused(ask, make_recording, refused):
    x = torch.zeros(1, 1, 2049, 2)
    reader = ask(RecordingSubject(make_recording([(x, x)]), title="long"))
    fields = {"layer": 0, "head": 0, "queries": "0,1", "keys": "0,2049"}
    answer = reader.get(address("0", "map", **fields, block=1))
    assert "2049 tokens in blocks of 1 are more than 2048 cells" in refused(answer, 422)
    assert reader.get(address("0", "map", **fields, block=2)).status_code == 200


@pytest.mark.parametrize(("what", "fields", "status", "said"), REFUSED)
def test_what_is_not_there_is_refused_in_a_sentence(reader, refused, what, fields, status, said):
    assert said in refused(reader.get(address("1", what, **fields)), status)


@pytest.mark.parametrize("header", ["X-View", "X-Client"])
@pytest.mark.parametrize("value", ["a b", "ä".encode(), "", "x" * 65])
def test_names_of_views_are_plain(reader, refused, header, value):
    refused(reader.get(address("1", "row", **PLACE, query=1), headers={header: value}), 422)


NUMBER = "must be a number, counted from 0, or mean"
TWO = "must be two whole numbers, the first and the one behind the last, such as 0,128"
MISREAD = [
    ("readouts", {**PLACE, "layer": "first"}, f"layer is 'first', but {NUMBER}"),
    ("readouts", {**PLACE, "head": "\u0663"}, f"head is '\u0663', but {NUMBER}"),  # an Arabic 3
    ("readouts", {"layer": 0}, "head is missing"),
    ("readouts", {}, "layer is missing; head is missing"),
    ("map", {**WINDOW, **PLACE, "keys": "1"}, f"keys is '1', but {TWO}"),
    ("map", {**WINDOW, **PLACE, "block": "2.5"}, "block is '2.5', but must be a whole number"),
    ("map", {**WINDOW, **PLACE, "block": 0}, "block is '0', but must be at least 1"),
    (
        "map",
        {**WINDOW, **PLACE, "block": 2**21},
        "block is '2097152', but must be at most 1,048,576",
    ),
    ("row", {**PLACE, "query": -1}, "query is '-1', but must be at least 0"),
    ("row", {**PLACE, "query": "9" * 5000}, "query is '999"),
    ("row", {**PLACE, "query": "x" * 99}, f"query is '{'x' * 38}…, but must be a whole number"),
]


@pytest.mark.parametrize(("what", "fields", "said"), MISREAD)
def test_what_can_not_be_read_is_refused_in_a_sentence_of_ours(reader, refused, what, fields, said):
    assert refused(reader.get(address("1", what, **fields)), 422).startswith(said)


@pytest.mark.parametrize("header", ["X-View", "X-Client"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a b", "is 'a b', but must be made of letters, digits, - and _"),
        ("", "is '', but must be made of letters, digits, - and _"),
        ("x" * 65, "must have at most 64 characters"),
    ],
)
def test_names_that_are_refused_are_named(reader, refused, header, value, said):
    answer = reader.get(address("1", "row", **PLACE, query=1), headers={header: value})
    assert refused(answer, 422).startswith(header.lower())
    assert said in refused(answer, 422)


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/nothing", "/nothing", "/api/runs/1/x"])
def test_addresses_that_do_not_exist(reader, refused, path):
    refused(reader.get(path), 404)


def test_methods_that_do_not_exist(reader, refused):
    refused(reader.delete("/api/runs/1"), 405)
    refused(reader.get("/api/runs"), 405)


# Texts


def test_reading_a_text_opens_a_run(client, network):
    _, tokenizer = network
    run = client.post("/api/runs", json={"text": "the dog"}).json()
    assert run["text"] == "the dog"
    assert client.get(f"/api/runs/{run['id']}").json() == run
    assert run["length"] == len(tokenizer.encode("the dog"))


def test_the_same_text_is_the_same_run(client, subject, ask, network):
    run = client.post("/api/runs", json={"text": "the dog"}).json()
    assert client.post("/api/runs", json={"text": "the dog"}).json() == run
    other = ask(ModelSubject(*network, title="anew"))  # a server that was started again
    assert other.post("/api/runs", json={"text": "the dog"}).json()["id"] == run["id"]


@pytest.mark.parametrize(
    "text",
    ["a\u202eb", "</script><img src=x>", "\x00", "😀 שלום", "\r\n\t", " ", "\ufeff"],
)
def test_any_text_comes_back_as_it_was(client, text):
    answer = client.post("/api/runs", json={"text": text})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    run = answer.json()
    assert run["text"] == text
    assert all(token["shown"].isprintable() for token in run["tokens"])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"text": ""}, 422, "the text is empty"),
        ({"text": "x" * (CHARACTERS + 1)}, 422, f"{CHARACTERS:,}"),
        ({"text": None}, 422, "text"),
        ({"text": 7}, 422, "text"),
        ({}, 422, "text"),
        ([], 422, ""),
        (None, 422, ""),
    ],
)
def test_texts_that_are_refused(client, refused, body, status, said):
    assert said in refused(client.post("/api/runs", json=body), status)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"text": "\xff"}', b'{"text": "\\ud800"}', b"[" * 100_000, b"\x00"]
)
def test_bodies_that_are_no_json(client, refused, body):
    answer = client.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    refused(answer, answer.status_code)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the request's body is no JSON"),
        (b"[]", "the request's body is no JSON object; send it as application/json"),
        (b'{"text": "\\ud800"}', "text is no Unicode: it has half of a pair that stands for one"),
        (b'{"text": 7}', "text is 7, but must be text"),
        (b"{}", "text is missing"),
        (b'{"text": ["' + b"x" * 99 + b'"]}', f"text is ['{'x' * 37}…, but must be text"),
    ],
)
def test_bodies_are_refused_in_a_sentence(client, refused, body, said):
    answer = client.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert refused(answer, 422).startswith(said)


def test_the_page_has_a_head(client):
    answer = client.head("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content == b""


def test_a_text_of_the_greatest_length_is_taken(client):
    run = client.post("/api/runs", json={"text": "é" * CHARACTERS}).json()
    assert run["length"] == 31
    assert "the first 31" in run["notes"][0]


def test_a_body_that_is_too_large_is_refused_unread(client, refused):
    body = json.dumps({"text": "x" * BODY})
    said = refused(client.post("/api/runs", content=body), 413)
    assert f"{BODY:,} bytes" in said


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "٣"])
def test_a_body_of_no_known_length_is_refused(client, length):
    headers = {"Content-Length": length.encode(), "Content-Type": "application/json"}
    answer = client.post("/api/runs", content=b'{"text": "a"}', headers=headers)
    assert answer.status_code in {400, 413}


def test_a_body_in_pieces_is_not_read_beyond_the_limit(client, refused):
    """Its length is not told before."""
    read = 0

    def pieces():
        nonlocal read
        yield b'{"text": "'
        for _ in range(200):
            read += 2**16
            yield b"x" * 2**16
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    refused(client.post("/api/runs", content=pieces(), headers=headers), 413)


# Growing


def test_appending_gives_what_the_model_gives_for_the_longer_text(client, first, floats):
    token = first["next"][3]
    longer = client.post(f"/api/runs/{first['id']}/append", json={"token": token["token"]}).json()
    assert longer["length"] == first["length"] + 1
    assert longer["tokens"] == [
        *first["tokens"],
        {name: token[name] for name in ("text", "shown")},
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
    ("body", "said"),
    [
        ({"token": 263}, "token 263 is not one of 0 … 262"),
        ({"token": -1}, "token"),
        ({"token": 2**40}, "token"),
        ({"token": "x"}, "token"),
        ({"token": 1.5}, "token"),
        ({}, "token"),
    ],
)
def test_tokens_that_are_refused(client, first, refused, body, said):
    assert said in refused(client.post(f"/api/runs/{first['id']}/append", json=body), 422)


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
    asked = {"tokens": 7, "temperature": 0.9, "seed": 5}
    *drawn, last = lines(client.post(f"/api/runs/{first['id']}/generate", json=asked))
    assert [line["token"] for line in drawn] == expected
    assert all(set(line) == {"token", "text", "shown"} for line in drawn)
    run = last["run"]
    assert run["text"] == tokenizer.decode([*ids, *expected][-31:])
    assert client.get(f"/api/runs/{run['id']}").json() == run
    assert run["tokens"][first["length"] :] == [
        {name: line[name] for name in ("text", "shown")} for line in drawn
    ]


def test_generation_at_temperature_0_takes_the_likeliest(client, first, lines):
    asked = {"tokens": 1, "temperature": 0}
    drawn, last = lines(client.post(f"/api/runs/{first['id']}/generate", json=asked))
    assert drawn["token"] == first["next"][0]["token"]
    appended = client.post(f"/api/runs/{first['id']}/append", json={"token": drawn["token"]}).json()
    assert last["run"] == appended


def test_a_run_that_outgrows_the_context_keeps_its_end_and_says_so(client, first, lines):
    *drawn, last = lines(client.post(f"/api/runs/{first['id']}/generate", json={"tokens": 40}))
    assert len(drawn) == 40
    assert last["run"]["length"] == 31
    assert "the context is full" in last["run"]["notes"][0]
    assert [t["shown"] for t in last["run"]["tokens"]] == [line["shown"] for line in drawn][-31:]


@pytest.mark.parametrize(
    ("body", "said"),
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
def test_generation_that_is_refused(client, first, refused, body, said):
    assert said in refused(client.post(f"/api/runs/{first['id']}/generate", json=body), 422)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"temperature": "warm"}, "temperature is 'warm', but must be a number"),
        ({"temperature": 101}, "temperature is 101, but must be at most 100"),
        ({"tokens": 1.5}, "tokens is 1.5, but must be a whole number"),
        ({"seed": []}, "seed is [], but must be a whole number"),
    ],
)
def test_how_to_generate_is_refused_in_a_sentence_of_ours(client, first, refused, body, said):
    answer = client.post(f"/api/runs/{first['id']}/generate", json=body)
    assert refused(answer, 422).startswith(said)


@pytest.mark.parametrize("temperature", ["NaN", "Infinity", "1e999"])
def test_temperatures_that_are_no_numbers(client, first, refused, temperature):
    body = f'{{"temperature": {temperature}}}'
    headers = {"Content-Type": "application/json"}
    path = f"/api/runs/{first['id']}/generate"
    refused(client.post(path, content=body, headers=headers), 422)


@pytest.mark.parametrize(
    ("path", "body"),
    [("", {"text": "a"}), ("/1/append", {"token": 1}), ("/1/generate", {"tokens": 1})],
)
def test_a_recording_takes_no_text(reader, refused, path, body):
    assert "recording" in refused(reader.post(f"/api/runs{path}", json=body), 422)


def test_ids_are_stable_while_others_open(client, first):
    row = address(first["id"], "row", layer=0, head=0, query=3)
    before = client.get(row).content
    for n in range(12):
        client.post("/api/runs", json={"text": f"the cat {n}"})
        assert client.get(row).content == before


def test_a_text_that_was_put_away_can_be_opened_again(client, refused):
    run = client.post("/api/runs", json={"text": "the cat"}).json()
    for n in range(16):
        client.post("/api/runs", json={"text": f"the dog {n}"})
    assert "open it again" in refused(client.get(f"/api/runs/{run['id']}"), 404)
    assert client.post("/api/runs", json={"text": "the cat"}).json() == run


def test_a_recording_that_was_freed_is_gone_and_it_is_said(ask, make_recording, refused):
    from regard.explorer.subjects import RecordingSubject

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
