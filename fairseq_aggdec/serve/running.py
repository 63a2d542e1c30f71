"""The service on a port, until a signal ends it."""

from __future__ import annotations

import socket

import uvicorn

from fairseq_aggdec.serve.app import Service


def run(service: Service, host: str, port: int) -> None:
    """Listens until SIGTERM or Ctrl-C; then takes no more requests, answers those it has, and returns.

    Raises:
        SystemExit: the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SystemExit(f"error: --host {host} --port {port}: {error.strerror}") from None
    with listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"serving at http://{shown}:{listening.getsockname()[1]}/", flush=True)
        config = uvicorn.Config(
            service.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(service.settings.timeout)),
        )
        uvicorn.Server(config).run(sockets=[listening])
