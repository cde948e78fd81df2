"""The checks of host and origin, and the content security policy of every answer."""

import re

import pytest

from regard.page import Explorer
from regard.page.file.bundle import script, static, static_folder, style
from regard.page.subjects import ModelSubject

OWN = "http://127.0.0.1:8000"
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
}


def directives(answer):
    policy = answer.headers["content-security-policy"]
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))


FOREIGN = [
    *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("127.0.0.1@evil.example", "", "169.254.169.254", "0.0.0.0", "[::ffff:7f00:1]", "["),
    *("127.1", "evil.example@127.0.0.1", "127.0.0.1/evil", "127.0.0.1/", "127.0.0.1?a"),
    *("127.0.0.1#a", "127.0.0.1:abc", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:65536"),
    *(
        "127.0.0.1:+80",
        "127.0.0.1:80:80",
        "[::1",
        "::1",
        "127.0.0.1 ",
        "[127.0.0.1]x",
        "[localhost]",
    ),
]


@pytest.mark.parametrize("path", ["/", "/api/about", "/page.js"])
def test_a_foreign_host_is_refused(shared, path):
    """A name that its owner let point to this machine: DNS rebinding."""
    for host in FOREIGN:
        answer = shared.get(path, headers={"Host": host})
        assert answer.status_code == 403, host
        assert "is not this server's" in answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_the_loopback_is_let_in(shared, host):
    assert shared.get("/api/health", headers={"Host": host}).status_code == 200


def test_the_address_it_was_bound_to_is_let_in(subject):
    from starlette.testclient import TestClient

    from regard.page._interface import application

    with TestClient(application(subject, "192.0.2.7"), base_url="http://192.0.2.7:99") as client:
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "http://127.0.0.1", "http://127.0.0.1:8001"),
        *("https://127.0.0.1:8000", "http://localhost:8000", f"{OWN}/", f"{OWN}.evil.example"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_another_origin_is_refused(shared, origin, method):
    given = {"json": {"text": "x"}} if method == "POST" else {}
    answer = shared.request(method, "/api/runs", headers={"Origin": origin}, **given)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_own_origin_is_let_in(shared):
    answer = shared.post("/api/runs", json={"text": "a cat"}, headers={"Origin": OWN})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("site", "status"),
    [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("x", 403)],
)
def test_requests_that_another_site_made_are_refused(shared, site, status):
    answer = shared.get("/api/about", headers={"Sec-Fetch-Site": site})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("GET", "/page.js", {}, 200),
        ("GET", "/none.js", {}, 404),
        ("GET", "/api/about", {}, 200),
        ("GET", "/api/nothing", {}, 404),
        ("POST", "/api/runs", {}, 422),
        ("DELETE", "/api/runs", {}, 405),
        ("POST", "/api/runs", {"Content-Length": "99999999"}, 413),
        ("POST", "/api/runs", {"Content-Length": "-1"}, 413),
        ("GET", "/", {"Host": "evil.example"}, 403),
    ],
)
def test_every_answer_carries_the_policy(shared, method, path, headers, status):
    answer = shared.request(method, path, headers=headers)
    assert answer.status_code == status
    given = directives(answer)
    for name, value in POLICY.items():
        assert given[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert given["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers.get_list("content-security-policy") == [
        answer.headers["content-security-policy"]
    ]


def test_numbers_and_streams_carry_the_policy_too(shared_reader):
    for path in ("/api/runs/0/heads", "/api/runs/0/row?layer=0&head=0&query=0"):
        assert directives(shared_reader.get(path))["default-src"] == "'none'"


@pytest.fixture(scope="module")
def served(network):
    explorer = Explorer(ModelSubject(*network, title="a model"))
    explorer.start()
    yield explorer
    explorer.stop()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../_server.py",
        "/static/../../../pyproject.toml",
        "/static/..%2f_server.py",
        "/static/%2e%2e/_server.py",
        "/static/%2e%2e%2f_server.py",
        "/static/%252e%252e%252f_server.py",
        "/static/..\\_server.py",
        "/static/..%5c_server.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/....//_server.py",
        "/static/main.js/../../_server.py",
        "/static/%00",
        "/static/main.js%00.css",
        "/static/" + "../" * 30 + "etc/passwd",
        "/../regard/explorer/_server.py",
        "//etc/passwd",
        "/static",
        "/static/",
        "/static/.",
    ],
)
def test_only_the_page_s_own_files_are_served(served, raw, path):
    answer = raw(served, path)
    assert answer.status in {400, 404, 307, 405}
    assert b"root:" not in answer.body
    assert b"import" not in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("/", static("index.html"), "text/html"),
        ("/page.css", style(), "text/css"),
        ("/page.js", script("main.js"), "text/javascript"),
    ],
)
def test_its_own_texts_are_given_with_their_types(shared, path, text, kind):
    answer = shared.get(path)
    assert answer.text == text
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert shared.head(path).headers["content-length"] == str(len(text.encode()))


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_there_are_no_pages_that_load_from_elsewhere(shared, path):
    assert shared.get(path).status_code == 404


def test_the_page_asks_for_nothing_from_elsewhere(shared):
    """Nor does it run code that stands in it, which the policy would stop."""
    page = shared.get("/").text
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links
    own = [link for link in links if not link.startswith("data:image/svg+xml,")]
    assert sorted(own) == ["/page.css", "/page.js"]
    assert not re.search(r"\son\w+=|<style|style=|<script(?![^>]*\bsrc=)", page)
    for path in static_folder().glob("*.js"):
        text = path.read_text("utf-8")
        actual = set(re.findall(r"https?://[^\s\"'`]+", text))
        assert actual <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, path.name
        assert not re.search(
            r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b|new Function", text
        ), path.name
