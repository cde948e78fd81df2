"""A stand-in for the Hugging Face hub: its cache, and a server on this machine."""

import json
import shutil
import threading
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def point_to(cache, monkeypatch):
    """Have the hub's library use this folder as its cache, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def put(cache, name, folder):
    """Lay a folder's files into a cache as the library does; the folder of the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for new in (snapshot, repository / "refs", repository / "blobs"):
        new.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in folder.iterdir():
        blob = repository / "blobs" / sha256(file.name.encode()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    return snapshot


@contextmanager
def served(models, monkeypatch, *, before=lambda file: None):
    """Serve models by name, each a folder; yields the names of the files that were sent.

    Args:
        models: the folders; None for a model whose owner asks for consent.
        monkeypatch: points the hub's library to the server.
        before: called when half of a file has been sent.
    """
    sent = []
    server = _Server(("127.0.0.1", 0), _handler(models, sent, before))
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    constants = "huggingface_hub.constants"
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    try:
        with monkeypatch.context() as patch:
            patch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
            patch.setattr(f"{constants}.ENDPOINT", address)
            patch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
            yield sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(models, sent, before):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, *, body):
            path = self.path.partition("?")[0].strip("/")
            if path.startswith("api/models/"):
                name = path.removeprefix("api/models/")
                gated = name in models and models[name] is None
                self.describe(models.get(name), *([403, "GatedRepo"] if gated else []))
                return
            name, _, file = path.partition("/resolve/")
            file = models[name] / file.partition("/")[2]
            data = file.read_bytes()
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{sha256(file.name.encode()).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                sent.append(file.name)
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                before(file.name)
                self.wfile.write(data[len(data) // 2 :])

        def describe(self, folder, status=404, why="RepoNotFound"):
            if folder is None:
                self.refuse(status, why)
                return
            files = [{"rfilename": f.name, "size": f.stat().st_size} for f in folder.iterdir()]
            data = json.dumps({"id": folder.name, "sha": COMMIT, "siblings": files}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def refuse(self, status, why):
            self.send_response(status)
            self.send_header("X-Error-Code", why)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Say nothing of a client that was interrupted."""
