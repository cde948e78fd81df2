"""Scripts in a process of their own.

It is forked from one that has imported torch and nothing of regard: to import torch anew for each
of two dozen scripts took longer than what most of them do.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Of Linux alone: elsewhere a fork of a process that holds torch is not safe.
FORKS = sys.platform == "linux"

SERVER = """
import json, os, signal, sys, traceback
import torch

def run(script, arguments, env, seconds, out, err):
    for stream, path in ((0, os.devnull), (1, out), (2, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]
    signal.alarm(seconds)
    try:
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return bool(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = run(*json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server():
    command = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )

    def stop():
        server.stdin.close()
        server.stdout.close()
        server.wait()

    atexit.register(stop)
    return server


def run_script(script, *arguments, timeout=0, env=None, fresh=False, status=0):
    """Run a script that must end with a status; return what it prints.

    With `fresh` its process has not imported torch.
    """
    if fresh or not FORKS:
        command = [sys.executable, "-c", script, *arguments]
        run = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout or None, check=False
        )
        assert run.returncode == status, run.stderr
        return run.stdout
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        given = (script, arguments, dict(os.environ if env is None else env), timeout)
        server = _server()
        server.stdin.write(json.dumps((*given, str(out), str(err))) + "\n")
        server.stdin.flush()
        ended = int(server.stdout.readline())
        assert ended == status, f"{ended}: {err.read_text('utf-8')}"
        return out.read_text("utf-8")
