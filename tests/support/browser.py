"""A Chromium for the tests that look at pages, and pages in it.

``REGARD_BROWSER=required`` fails where there is none, ``REGARD_BROWSER_SLOWDOWN=5`` throttles the
pages' processor to a fifth.
"""

import contextlib
import os
import shutil

import pytest

REQUIRED = os.environ.get("REGARD_BROWSER") == "required"
SLOWDOWN = float(os.environ.get("REGARD_BROWSER_SLOWDOWN", "1"))
PATIENCE = 30_000 * SLOWDOWN  # milliseconds until a page that never gets there fails
HINT = "get playwright and chromium"


def _missing(why):
    message = f"{why}: {HINT}"
    return pytest.fail(message, pytrace=False) if REQUIRED else pytest.skip(message)


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        _missing("playwright is missing")
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    arguments = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with sync_playwright() as player:
        try:
            actual = player.chromium.launch(executable_path=system, args=arguments)
        except Error as error:
            _missing(f"no chromium starts ({str(error).splitlines()[0]})")
        yield actual
        actual.close()


@pytest.fixture(scope="session")
def pages(browser):
    """Open a page in a context of its own, throttled on request."""

    @contextlib.contextmanager
    def opened(**options):
        with browser.new_context(**options) as context:
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            if SLOWDOWN > 1:
                session = context.new_cdp_session(page)
                session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})
            yield page

    return opened
