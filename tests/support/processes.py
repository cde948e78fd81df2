"""Scripts in a process of their own."""

import subprocess
import sys


def run_script(script, *arguments, timeout=None, env=None):
    """Run a script that must succeed; return what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    run = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
