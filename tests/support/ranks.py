"""Processes of several ranks on this machine."""

import subprocess

SECONDS = 300  # for a machine that is busy with something else


def run_ranks(commands, environment):
    """Run a process a rank to its end; status and output of each."""
    ranks = [
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [rank.returncode for rank in ranks], outputs
