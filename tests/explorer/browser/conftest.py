"""The page in a browser that shows it as people see it.

Run with:  REGARD_BROWSER=required pytest tests/explorer/browser
"""

import contextlib
import os
import shutil

import pytest
import torch

from regard.explorer._subjects import ModelSubject, RecordingSubject
from regard.gpt import load

REQUIRED = os.environ.get("REGARD_BROWSER") == "required"
HINT = "get playwright and chromium, then REGARD_BROWSER=required pytest tests/explorer/browser"
EXAMPLE = "The with statement wraps the execution of a block. The with statement"


def _missing(why):
    message = f"{why}: {HINT}"
    return pytest.fail(message, pytrace=False) if REQUIRED else pytest.skip(message)


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        _missing("there is no playwright")
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    arguments = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with sync_playwright() as player:
        try:
            found = player.chromium.launch(executable_path=system, args=arguments)
        except Error as error:
            _missing(f"no chromium starts ({str(error).splitlines()[0]})")
        yield found
        found.close()


@pytest.fixture(scope="session")
def shipped():
    """The model that comes with regard."""
    return load(None)


@pytest.fixture(scope="module")
def model(shipped):
    return ModelSubject(*shipped, title="the model", text=EXAMPLE)


@pytest.fixture(scope="module")
def long(make_recording):
    """One head over 16,384 tokens, and its queries and keys."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 16384, 16, generator=generator)
    return RecordingSubject(make_recording([(query, key)]), title="long"), query[0, 0], key[0, 0]


@pytest.fixture(scope="module")
def running():
    """Serve things for the tests of a file."""
    from regard.explorer import Explorer

    explorers = {}

    def start(subject):
        if id(subject) not in explorers:
            explorers[id(subject)] = Explorer(subject), subject
            explorers[id(subject)][0].start()
        return explorers[id(subject)][0]

    yield start
    for explorer, _ in explorers.values():
        explorer.stop()


@pytest.fixture
def show(browser, running):
    """Open the page of something; whatever it complains about fails the test."""
    with contextlib.ExitStack() as stack:
        complaints = []

        def go(subject, hash="", *, width=1440, height=900, offline=False, **options):  # noqa: A002
            explorer = running(subject)
            context = browser.new_context(viewport={"width": width, "height": height}, **options)
            stack.callback(context.close)
            context.set_default_timeout(10_000)
            page = context.new_page()

            def console(message):
                if message.type == "error" and not offline:
                    complaints.append(f"{message.text} {message.location}")

            def asked(request):
                if not request.url.startswith((explorer.url, "data:", "blob:")):
                    complaints.append(f"asks {request.url}")

            page.on("console", console)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", asked)
            page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
            page.goto(explorer.url + hash)
            page.locator("#tokens .token").first.wait_for()
            page.wait_for_function("() => document.querySelector('#busy').textContent === ''")
            return page

        yield go
    assert complaints == []
