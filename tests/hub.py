"""A stand-in for the Hugging Face hub on this machine, which huggingface_hub reads when ``HF_ENDPOINT`` names it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(models: dict[str, Path], asked: list[str]) -> Iterator[str]:
    """Serves folders as models by name; gives the address, and notes each path that is asked for."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.partition("?")[0]
            for name, folder in models.items():
                files = sorted(one.name for one in folder.iterdir())
                if path.startswith(f"/api/models/{name}"):
                    about = {
                        "id": name,
                        "sha": COMMIT,
                        "siblings": [{"rfilename": one} for one in files],
                    }
                    self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
                    return
                if path.startswith(f"/{name}/resolve/") and path.rpartition("/")[2] in files:
                    body = (folder / path.rpartition("/")[2]).read_bytes()
                    tag = f'"{hashlib.sha256(body).hexdigest()}"'
                    self.answer(200, body, ETag=tag, X_Repo_Commit=COMMIT)
                    return
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
