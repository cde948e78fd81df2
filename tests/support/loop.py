"""An event loop of the tests' own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def run_in_loop(coroutine):
    """Its result, from a thread of its own: on this one a browser's loop may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
