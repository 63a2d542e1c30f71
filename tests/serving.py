"""A service on a free port in a thread of this process, over a tiny random model, which tests may hold up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.routing import BaseRoute

from fairseq_aggdec import Translator
from fairseq_aggdec.api.text import Codec
from fairseq_aggdec.serve import running
from fairseq_aggdec.serve.app import Service
from fairseq_aggdec.serve.limits import ServiceSettings
from tests.random_models import WORDS
from tests.support import generation_options, make_model, make_task, random_sources

SENTENCES = [" ".join(f"w{token - 4}" for token in row) for row in random_sources(8, 12)]


def tiny(decoding: str = "beam", **options: Any) -> Translator:
    """A random model; sentences are words ``w0`` to ``w35``."""
    assert WORDS == 36
    task = make_task(decoding)
    model, generation = make_model(task, 5), generation_options(**({"beam": 5} | options))
    generator = task.build_generator([model], generation)
    return Translator(task, [model], generator, Codec(), generation=generation)


class Gate:
    """Holds a translator's ``generate`` up while it is closed, and notes what it was asked for."""

    def __init__(self, translator: Translator):
        self.open, self.inside, self.seen = threading.Event(), threading.Event(), list[list[str]]()
        self.open.set()
        self.generate = translator.generate
        translator.generate = self.pass_through  # type: ignore[method-assign]

    def pass_through(self, sentences: Any, *args: Any, **options: Any) -> Any:
        self.seen.append(list(sentences))
        self.inside.set()
        assert self.open.wait(60)
        return self.generate(sentences, *args, **options)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Closed until it is opened, at the latest at the end."""
        self.open.clear()
        self.inside.clear()
        self.seen.clear()
        try:
            yield
        finally:
            self.open.set()


@contextmanager
def live(
    translator: Translator, routes: Sequence[BaseRoute] = (), **settings: Any
) -> Iterator[httpx.Client]:
    """A client of a service that listens; ``routes`` are added to its own."""
    service = Service(translator, ServiceSettings(**settings))
    service.app.router.routes.extend(routes)
    server = running.Server(service)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
