"""Random requests, drawn from the schema of the interface."""

import hypothesis
import pytest
from hypothesis import strategies
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.openapi import from_asgi

from regard.page import RecordingSubject
from regard.page._interface import application
from regard.page.subjects import ModelSubject

load_all_checks()
CHECKS = [
    CHECKS.get_one(name)
    for name in (
        *("not_a_server_error", "status_code_conformance"),
        *("content_type_conformance", "response_schema_conformance"),
    )
]
OWN = {"Host": "127.0.0.1:8000"}

# What others emit while requests are drawn and sent; none of it is about the server.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:schemathesis"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:starlette_testclient"),
]
PATHS = [
    ("/api/health", "GET"),
    ("/api/about", "GET"),
    ("/api/training", "GET"),
    ("/api/training/{step}/thumbnails", "GET"),
    ("/api/runs", "POST"),
    ("/api/runs/{name}", "GET"),
    ("/api/runs/{name}/append", "POST"),
    ("/api/runs/{name}/changed", "POST"),
    ("/api/runs/{name}/generate", "POST"),
    *(
        (f"/api/runs/{{name}}/{what}", "GET")
        for what in [
            "views",
            "writer",
            "heads",
            "thumbnails",
            "map",
            "sketch",
            "row",
            "column",
            "cell",
            "readouts",
            "readouts/progress",
            "steps",
            "effects",
            "passages",
            "patched",
        ]
    ),
]


@pytest.fixture(scope="module")
def subjects(network, padded):
    return {
        "model": ModelSubject(*network, title="a model"),
        "recording": RecordingSubject(padded.recording, title="a recording"),
    }


def lasting(app):
    """The server over many requests; whoever sends them would end it after each."""

    async def call(scope, receive, send):
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        for part in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{part}.complete"})

    return call


@pytest.fixture(scope="module")
def schemas(subjects):
    return {
        kind: from_asgi("/openapi.json", lasting(application(subject)), headers=OWN)
        for kind, subject in subjects.items()
    }


def test_all_addresses_are_tried(schemas):
    paths = {
        (one.ok().path, one.ok().method.upper()) for one in schemas["model"].get_all_operations()
    }
    assert paths == set(PATHS)


@pytest.mark.each_once
@pytest.mark.parametrize("examples", [3, pytest.param(50, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["model", "recording"])
@pytest.mark.parametrize(("path", "method"), PATHS, ids=lambda given: given)
def test_no_request_breaks_the_server(subjects, schemas, kind, path, method, examples):
    operation = schemas[kind][path][method]
    name = subjects[kind].about()["runs"][0]
    small = strategies.integers(0, 12)

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        case=operation.as_strategy(), known=strategies.booleans(), data=strategies.data()
    )
    def ask(case, known, data):
        if known and "{name}" in path:  # else hardly a request would come so far
            case.path_parameters["name"] = name
            for field in set(case.query or {}) & {"layer", "head", "query", "key"}:
                case.query[field] = data.draw(small)
            if path.endswith("/generate") and isinstance(case.body, dict):
                case.body["tokens"] = data.draw(small)
        case.headers = {**(case.headers or {}), **OWN}
        answer = case.call()
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        if answer.status_code >= 400:
            assert list(answer.json()) == ["error"]
        case.validate_response(answer, checks=CHECKS)

    ask()
