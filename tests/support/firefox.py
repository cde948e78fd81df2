"""A Firefox for the tests that look at pages, driven by its own protocol, Marionette.

Playwright drives a build of its own alone. The tests are left out where Firefox is missing, unless
``REGARD_BROWSER=required`` makes that a failure.
"""

import contextlib
import itertools
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from support.browser import REQUIRED

PATIENCE = 60  # seconds until a page that never gets there fails
PAUSE = 0.02  # seconds between two looks at it
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # what WebDriver calls an element's name
PREFERENCES = {
    "marionette.port": 0,  # one that is free
    "datareporting.policy.dataSubmissionEnabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "ui.primaryPointerCapabilities": 6,  # a mouse, which hovers; without a screen there is none
    "ui.allPointerCapabilities": 6,
}


@pytest.fixture(scope="session")
def firefox():
    """Open a Firefox, with a page to look at."""
    program = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
    if program is None:
        message = "firefox is missing: apt-get install firefox-esr"
        if REQUIRED:
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    with contextlib.ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lines = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});"
            for name, value in PREFERENCES.items()
        ]
        (profile / "user.js").write_text("\n".join(lines))
        command = [program, "--headless", "--marionette", "--no-remote", "--profile", profile]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = stack.enter_context(subprocess.Popen(command, **quiet))
        stack.callback(process.terminate)
        port = profile / "MarionetteActivePort"
        _until(lambda: port.is_file() and port.read_text().strip())
        connection = socket.create_connection(("127.0.0.1", int(port.read_text())), PATIENCE)
        yield Page(stack.enter_context(connection))


class Page:
    """The one page of a Firefox."""

    def __init__(self, connection):
        self._stream = connection.makefile("rwb")
        self._numbers = itertools.count()
        self._receive()  # what it is
        self._send("WebDriver:NewSession", {})

    def goto(self, address):
        """Open an address."""
        self._send("WebDriver:Navigate", {"url": address})

    def evaluate(self, expression):
        """The value of an expression of the page, or of its promise."""
        script = f"const [done] = arguments; Promise.resolve({expression}).then(done);"
        return self._send("WebDriver:ExecuteAsyncScript", {"script": script, "args": []})["value"]

    def wait_for(self, expression):
        """Wait until an expression is true."""
        _until(lambda: self.evaluate(expression))

    def click(self, selector):
        """Click on an element."""
        self._send("WebDriver:ElementClick", {"id": self._find(selector)})

    def fill(self, selector, text):
        """Type into a field, in place of what it holds."""
        element = self._find(selector)
        self._send("WebDriver:ElementClear", {"id": element})
        self._send("WebDriver:ElementSendKeys", {"id": element, "text": text})

    def _find(self, selector):
        query = {"using": "css selector", "value": selector}
        return self._send("WebDriver:FindElement", query)["value"][ELEMENT]

    def _send(self, name, parameters):
        message = json.dumps([0, next(self._numbers), name, parameters]).encode()
        self._stream.write(b"%d:%s" % (len(message), message))
        self._stream.flush()
        _, _, error, result = self._receive()
        assert error is None, f"{name}: {error['message']}"
        return result

    def _receive(self):
        """One message: its length, a colon, JSON."""
        length = b"".join(iter(lambda: self._stream.read(1), b":"))
        return json.loads(self._stream.read(int(length)))


def _until(happened):
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(PAUSE)
