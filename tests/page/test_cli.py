"""`regard explore` as a process: it says where it is, serves, and ends on a signal."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import torch

from regard.gpt import save

LIMIT = 60


@pytest.fixture(scope="module")
def folder(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save(path, *network)
    return path


@pytest.fixture(scope="module")
def kept(padded, tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "recording"
    padded.recording.save(path)
    return path


@pytest.fixture
def start():
    running = []

    def begin(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "regard", "explore", "--no-open", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def opened(process):
    """The port of the address that it printed."""
    line = process.stdout.readline()
    actual = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/  \(Ctrl-C ends\)\n", line)
    assert actual, line + process.stderr.read()
    return int(actual[1])


@contextlib.contextmanager
def asking(port, path, body=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)) as one:
        headers = {} if body is None else {"Content-Type": "application/json"}
        one.request("GET" if body is None else "POST", path, body, headers)
        with one.getresponse() as answer:
            yield answer


def ask(port, path):
    with asking(port, path) as answer:
        return json.load(answer)


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_it_serves_a_model_until_it_is_interrupted(start, folder):
    process = start("the dog sat", "--port", 0, "--model", folder)
    port = opened(process)
    about = ask(port, "/api/about")
    assert about["title"] == folder.name
    (name,) = about["runs"]
    assert ask(port, f"/api/runs/{name}")["text"] == "the dog sat"
    with asking(port, f"/api/runs/{name}/generate", '{"tokens": 500}') as drawing:
        assert drawing.readline()
        process.send_signal(signal.SIGINT)  # in the middle of an answer
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode in {0, 130}
    assert (out, err) == ("", "")


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_it_serves_a_recording_until_it_is_told_to_end(start, kept, name):
    process = start("--port", 0, "--recording", kept)
    port = opened(process)
    assert ask(port, "/api/about")["runs"] == ["0", "1"]
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode in {0, 130, -signal.SIGTERM}
    assert (out, err) == ("", "")


@pytest.fixture
def misused():
    """Run in process; it must fail before it serves."""

    def call(capfd, *arguments):
        from regard.cli.app import run

        assert run(["explore", "--no-open", *map(str, arguments)]) == 2
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("regard: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return call


def test_a_folder_that_holds_no_recording_is_refused(misused, capfd, tmp_path):
    assert str(tmp_path / "none") in misused(capfd, "--recording", tmp_path / "none")
    assert str(tmp_path) in misused(capfd, "--recording", tmp_path)
    for content in ('{"format": "regard recording", "version": 99}', "[]", "7"):
        (tmp_path / "recording.json").write_text(content)
        misused(capfd, "--recording", tmp_path)


def test_a_port_that_is_taken_is_named(misused, capfd, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = misused(capfd, "--model", folder, "--port", port)
    assert "already in use" in message
    assert str(port) in message


def test_an_address_of_another_machine_is_refused(misused, capfd, folder):
    assert "192.0.2.1" in misused(capfd, "--model", folder, "--host", "192.0.2.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--file", __file__), "a recording has no model, with which a text goes"),
        (("--port", 70000), "--port"),
        (("--port", "x"), "--port"),
        (("a", "--file", __file__), "given twice"),
        (("",), "empty"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(misused, capfd, kept, arguments, message):
    assert message in misused(capfd, "--recording", kept, *arguments)


def test_a_recording_that_can_not_be_shown_is_refused(misused, capfd, make_recording, tmp_path):
    both = torch.ones(1, 1, 5, 7, dtype=torch.bool)
    given = [(torch.randn(1, 1, 5, 3), torch.randn(1, 1, 7, 3))]
    make_recording(given, [both]).save(tmp_path / "cross")
    assert "record all rows" in misused(capfd, "--recording", tmp_path / "cross")


# A map that stands still for ever: whoever waits for it would wait for ever, too.
HELD = """
import sys
from threading import Event
from regard.cli.app import run
from regard.page._run import Run

def held(*given):
    print("begun", flush=True)
    Event().wait()

Run.map = held
raise SystemExit(run(["explore", "--no-open", "--recording", sys.argv[1]]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_ends_it_while_a_map_is_being_computed(kept):
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(kept)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        port = opened(process)
        window = "layer=0&head=0&queries=0,13&keys=0,13&block=1"
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as asking_for_it:
            path = f"/api/runs/0/map?{window}"
            asking_for_it.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert asking_for_it.recv(2**12).startswith(b"HTTP/1.1 409 ")
            out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
