"""The HTTP interface: requests that are refused, each in a sentence."""

import pytest
import torch
from support.explorer import address

from regard.page import RecordingSubject

PLACE = {"layer": 1, "head": 4}


@pytest.mark.parametrize(
    ("what", "fields", "status", "message"),
    [
        ("", {}, 404, "open it again"),
        ("heads", {}, 404, "open it again"),
        ("steps", {**PLACE, "query": 1}, 404, "open it again"),
    ],
)
def test_a_run_that_is_not_open(shared, refused, what, fields, status, message):
    assert message in refused(shared.get(address("0123456789abcdef", what, **fields)), status)


WINDOW = {"queries": "0,13", "keys": "0,13", "block": 2}
REFUSED = [
    ("map", {**WINDOW, "layer": 2, "head": 0}, 404, "there is no layer 2; there are 0 … 1"),
    ("map", {**WINDOW, "layer": 1, "head": 6}, 404, "there is no head 6; there are 0 … 5"),
    ("map", {**WINDOW, **PLACE, "queries": "0,14"}, 422, "queries=0,14 is not a range within 0,13"),
    ("map", {**WINDOW, **PLACE, "keys": "5,5"}, 422, "keys=5,5 is not a range within 0,13"),
    ("map", {**WINDOW, **PLACE, "keys": "7,5"}, 422, "keys=7,5 is not a range within 0,13"),
    ("map", {**WINDOW, **PLACE, "keys": "-1,5"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "keys": "1"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "keys": "1,2,3"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "keys": "1.0,2.0"}, 422, "keys"),
    ("map", {**WINDOW, **PLACE, "block": 0}, 422, "block"),
    ("map", {**WINDOW, **PLACE, "block": 3}, 422, "block=3 is not a power of two"),
    ("map", {**WINDOW, **PLACE, "block": 2**21}, 422, "block"),
    ("map", {**WINDOW, "layer": "mean", "head": 1}, 422, "ask for head=mean"),
    ("map", PLACE, 422, "queries"),
    ("sketch", PLACE, 422, "block"),
    ("sketch", {**PLACE, "block": 0}, 422, "block"),
    ("sketch", {**PLACE, "block": 6}, 422, "block=6 is not a power of two"),
    ("sketch", {**PLACE, "block": 2**21}, 422, "block"),
    ("sketch", {"layer": 2, "head": 0, "block": 1}, 404, "there is no layer 2"),
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
    ("readouts/progress", {"layer": 0, "head": 6}, 404, "there is no head 6"),
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
    answer = reader.get(address("0", "sketch", layer=0, head=0, block=1))
    assert "2049 tokens in blocks of 1 are more than 2048 cells" in refused(answer, 422)
    assert reader.get(address("0", "sketch", layer=0, head=0, block=2)).status_code == 200


@pytest.mark.parametrize(("what", "fields", "status", "message"), REFUSED)
def test_what_is_not_there_is_refused_in_a_sentence(
    shared_reader, refused, what, fields, status, message
):
    assert message in refused(shared_reader.get(address("1", what, **fields)), status)


@pytest.mark.parametrize("header", ["X-View", "X-Client"])
@pytest.mark.parametrize("value", ["a b", "ä".encode(), "", "x" * 65])
def test_names_of_views_are_plain(shared_reader, refused, header, value):
    refused(shared_reader.get(address("1", "row", **PLACE, query=1), headers={header: value}), 422)


NUMBER = "must be a number, counted from 0, or mean"
TWO = "must be two whole numbers, first and stop, such as 0,128"
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


@pytest.mark.parametrize(("what", "fields", "message"), MISREAD)
def test_what_can_not_be_read_is_refused_in_a_sentence_of_ours(
    shared_reader, refused, what, fields, message
):
    assert refused(shared_reader.get(address("1", what, **fields)), 422).startswith(message)


@pytest.mark.parametrize("header", ["X-View", "X-Client"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a b", "is 'a b', but must be made of letters, digits, - and _"),
        ("", "is '', but must be made of letters, digits, - and _"),
        ("x" * 65, "must have at most 64 characters"),
    ],
)
def test_names_that_are_refused_are_named(shared_reader, refused, header, value, message):
    answer = shared_reader.get(address("1", "row", **PLACE, query=1), headers={header: value})
    assert refused(answer, 422).startswith(header.lower())
    assert message in refused(answer, 422)


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/nothing", "/nothing", "/api/runs/1/x"])
def test_addresses_that_do_not_exist(shared_reader, refused, path):
    refused(shared_reader.get(path), 404)


def test_methods_that_do_not_exist(shared_reader, refused):
    refused(shared_reader.delete("/api/runs/1"), 405)
    refused(shared_reader.get("/api/runs"), 405)


CUT = {"kind": "cut", "keys": [0, 3]}
OFF = {"kind": "off", "layer": 0, "head": 1}
LAX = [
    ("append", {"token": True}, "token is True, but must be a whole number"),
    ("append", {"token": "1"}, "token is '1', but must be a whole number"),
    ("append", {"token": 1.0}, "token is 1.0, but must be a whole number"),
    ("append", {"token": 1, "more": 2}, "more is not a field of this request; leave it out"),
    ("generate", {"tokens": True}, "tokens is True, but must be a whole number"),
    ("generate", {"tokens": 1, "temperature": "0"}, "temperature is '0', but must be a number"),
    ("generate", {"tokens": 1, "temperature": False}, "temperature is False, but must be a nu"),
    ("generate", {"tokens": 1, "seed": "7"}, "seed is '7', but must be a whole number"),
    ("generate", {"token": 1}, "token is not a field of this request; leave it out"),
    ("changed", {"changes": [OFF | {"head": True}]}, "changes.0.off.head is True, but must be a"),
    ("changed", {"changes": [OFF | {"keys": [0, 3]}]}, "changes.0.off.keys is not a field of"),
    ("changed", {"changes": [CUT | {"keys": [0, "3"]}]}, "changes.0.cut.keys.1 is '3', but must"),
    ("changed", {"changes": [CUT | {"key": 1}]}, "changes.0.cut.key is not a field of this req"),
    ("changed", {"changes": [CUT], "why": ""}, "why is not a field of this request; leave it out"),
]


@pytest.mark.parametrize(("what", "body", "message"), LAX)
def test_fields_are_what_they_say_and_no_others(shared, refused, what, body, message):
    (name,) = shared.get("/api/about").json()["runs"]
    answer = shared.post(f"/api/runs/{name}/{what}", json=body)
    assert refused(answer, 422).startswith(message)


def test_a_text_has_no_other_fields(shared, refused):
    answer = shared.post("/api/runs", json={"text": "a cat", "tokens": 3})
    assert refused(answer, 422) == "tokens is not a field of this request; leave it out"
