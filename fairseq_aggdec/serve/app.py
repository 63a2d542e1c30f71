"""The service as an ASGI application; ``aggdec serve`` runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fairseq_aggdec.api.calls import Call
from fairseq_aggdec.api.decoding import Hypothesis
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.serve import libre, page
from fairseq_aggdec.serve.batching import Batcher, WaitingJob
from fairseq_aggdec.serve.guard import HANDLERS, ClientGone, Guard, Metrics, Refused, check_key

T = TypeVar("T")
# Options of a call that a request may have; the others are the service's.
OPTIONS = ("beam", "nbest", "max_len_b", "min_len", "attention", "source_lang", "target_lang")
SCORING = ("sentences", "targets", "attention", "source_lang", "target_lang", "api_key")
MAX_FIELDS = 1000  # of a form
BESIDE = ("prefix", "drafts", "targets", "sentences", "api_key", "stream")
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class ServiceSettings:
    """Of one service.

    Attributes:
        max_batch: sentences decoded together. max_wait_ms: milliseconds that the first of them waits for others.
        max_queue: sentences that may wait. max_bytes: of a request.
        timeout: seconds until a request that was not answered gets 504.
        keys: of which a request must have one; none: all may ask.
    """

    max_batch: int = 32
    max_wait_ms: float = 5.0
    max_queue: int = 1024
    max_bytes: int = 1 << 20
    timeout: float = 60.0
    keys: Sequence[str] = ()


class Service:
    """One translator for any number of clients; ``app`` is the ASGI application."""

    batcher: Batcher

    def __init__(self, translator: Translator, settings: ServiceSettings | None = None):
        self.translator, self.settings = translator, settings or ServiceSettings()
        self.metrics = Metrics()
        self.metrics.waiting.set_function(lambda: len(self.batcher))
        routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", self.page),
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.show_metrics),
            "/languages": ("GET", self.languages),
            "/translate": ("POST", self.translate),
            "/generate": ("POST", self.generate),
            "/trace": ("POST", self.trace),
        }
        guard = Middleware(Guard, self.metrics, list(routes), self.settings.max_bytes)
        self.app = Starlette(
            routes=[Route(path, ask, methods=[how]) for path, (how, ask) in routes.items()],
            middleware=[guard],
            exception_handlers=HANDLERS,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Decodes as long as the application runs."""
        own, wait = self.settings, self.settings.max_wait_ms / 1000
        told = self.metrics.decoded
        self.batcher = Batcher(self.translator, own.max_batch, wait, own.max_queue, told)
        running = asyncio.create_task(self.batcher.run())
        yield
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def page(self, request: Request) -> Response:
        text = page.whole(self.translator, bool(self.settings.keys))
        return HTMLResponse(text, headers=SECURITY)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "waiting": len(self.batcher)})

    async def show_metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def languages(self, request: Request) -> Response:
        targets = self.translator.language_support.targets.items()
        return JSONResponse([{"code": code, "name": code, "targets": to} for code, to in targets])

    async def translate(self, request: Request) -> Response:
        """LibreTranslate's interface."""
        own = self.translator
        asked = libre.read(await self.fields(request), own.languages, own.language_support.all)
        check_key(self.settings.keys, request, asked.api_key)
        options = self.checked(asked.options(self.translator.own.beam))
        jobs = [WaitingJob(line, options) for line in asked.lines if line.strip()]
        found = await self.answers(request, jobs)
        return JSONResponse(asked.answer([[one.text for one in ranked] for ranked in found]))

    async def generate(self, request: Request) -> Response:
        """Everything that a translator offers, as JSON."""
        body = await self.fields(request)
        check_key(self.settings.keys, request, body.get("api_key"))
        sentences = texts(body, "sentences")
        unknown = [name for name in body if name not in (*OPTIONS, *BESIDE)]
        if unknown:
            raise Refused(400, f"there is no option {unknown[0]!r}: there are {', '.join(OPTIONS)}")
        if "targets" in body:
            return await self.score(request, body, sentences)
        streams = flag(body, "stream") or "text/event-stream" in request.headers.get("accept", "")
        beside = {name: texts(body, name, sentences) for name in ("prefix", "drafts")}
        given = {name: body[name] for name in OPTIONS if body.get(name) is not None}
        drafts = {"drafts": beside["drafts"]} if any(beside["drafts"]) else {}
        self.checked(given | drafts)
        jobs = [
            # Of one prefix each: a batch has one.
            WaitingJob(sentence, given | ({"prefix": prefix} if prefix else {}), draft)
            for sentence, prefix, draft in zip(sentences, *beside.values(), strict=True)
        ]
        if streams:
            return self.events(request, jobs)
        found = await self.answers(request, jobs)
        return JSONResponse(hypotheses(found))

    async def score(
        self, request: Request, body: dict[str, Any], sentences: Sequence[str]
    ) -> Response:
        """The log-probabilities of given outputs."""
        if beside := [name for name in body if name not in SCORING]:
            raise Refused(
                400, f"{beside[0]} does not go with targets, which are scored as they are"
            )
        targets, size = texts(body, "targets"), self.settings.max_batch
        given = {name: body.get(name) for name in ("source_lang", "target_lang")}
        call = or_refuse(Call.of, given | {"attention": flag(body, "attention")})
        or_refuse(self.translator.language_support.check, call)
        if len(targets) != len(sentences):
            raise Refused(400, f"{len(sentences)} sentences and {len(targets)} targets")
        self.batcher.refuse_too_many(len(sentences))
        for number, target in enumerate(targets):
            or_refuse(self.translator.encode_target, target, number, call.target_lang)
        self.check(sentences, [call.source_lang] * len(sentences))
        # One job a batch: others get their turn between two of them, and a timeout drops the rest.
        parts = [slice(first, first + size) for first in range(0, len(sentences), size)]
        score = self.translator.score
        options = call.attention, call.source_lang, call.target_lang
        works = [partial(score, sentences[one], targets[one], size, *options) for one in parts]
        found = await self.answers(request, [WaitingJob(work=work) for work in works])
        return JSONResponse(hypotheses([[one] for part in found for one in part]))

    async def trace(self, request: Request) -> Response:
        """How one sentence was decoded, as parts of a page."""
        body = await self.fields(request)
        check_key(self.settings.keys, request, body.get("api_key"))
        sentence = " ".join(texts(body, "sentences")).strip()
        self.check([sentence], [None])
        job = WaitingJob(work=partial(page.traced, self.translator, sentence))
        (found,) = await self.answers(request, [job])
        return JSONResponse(found)

    async def fields(self, request: Request) -> dict[str, Any]:
        """The body of a request; ``Refused`` (408) if it does not come in time."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await fields(request)
        except TimeoutError:
            raise Refused(408, "the body of the request did not come in time") from None
        except ClientDisconnect:  # in the middle of it
            raise ClientGone from None

    def checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of a call, if the translator can honour them; else ``Refused`` (400)."""
        call = or_refuse(Call.of, options)
        or_refuse(self.translator.check, call)
        or_refuse(self.batcher.check_beam, call.beam)
        return options

    def check(self, sentences: Sequence[str], languages: Sequence[str | None]) -> None:
        """Raises ``Refused`` (400) for a sentence that is too long; ``languages``: of each, None: the usual one."""
        for number, (sentence, language) in enumerate(zip(sentences, languages, strict=True)):
            or_refuse(self.translator.encode, sentence, number, language)

    def submit(self, jobs: Sequence[WaitingJob]) -> None:
        own = [job for job in jobs if job.work is None]
        self.check([job.sentence for job in own], [job.options.get("source_lang") for job in own])
        self.batcher.submit(jobs)

    async def answers(self, request: Request, jobs: Sequence[WaitingJob]) -> list[Any]:
        """What becomes of jobs. They are dropped when the client goes, or when it takes too long (504)."""
        self.submit(jobs)
        return await self.waited(request, jobs)

    async def waited(self, request: Request, jobs: Sequence[WaitingJob]) -> list[Any]:
        """As :meth:`answers`, of jobs that are in the queue."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await while_there(request, asyncio.gather(*(job.answer for job in jobs)))
        except TimeoutError:
            raise Refused(504, f"no answer within {self.settings.timeout:g} s") from None
        finally:
            for job in jobs:
                job.answer.cancel()

    def events(self, request: Request, jobs: Sequence[WaitingJob]) -> Response:
        """Server-sent events: ``tokens`` whenever some are certain, at the end ``done`` or ``error``."""
        loop, said = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()

        def tell(number: int) -> Callable[[Sequence[str], str], None]:
            def told(tokens: Sequence[str], text: str) -> None:
                event = {"sentence": number, "tokens": list(tokens), "text": text}
                loop.call_soon_threadsafe(said.put_nowait, ("tokens", event))

            return told

        for number, job in enumerate(jobs):
            job.told = tell(number)
        self.submit(jobs)

        def ended(ending: asyncio.Task[list[Any]]) -> None:
            # Where nobody reads on, nobody asks for it.
            _ = ending.cancelled() or ending.exception()
            said.put_nowait(("done", None))

        async def stream() -> AsyncIterator[str]:
            ending = asyncio.create_task(self.waited(request, jobs))
            ending.add_done_callback(ended)
            try:
                while (event := await said.get())[0] != "done":
                    yield _event(*event)
                yield _event("done", hypotheses(await ending))
            except Refused as error:
                yield _event("error", {"error": error.detail})
            except ClientGone:
                pass
            finally:
                ending.cancel()

        return StreamingResponse(
            stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


def or_refuse(check: Callable[..., T], *values: Any) -> T:
    """What a check gives; what it has against a value is the client's fault."""
    try:
        return check(*values)
    except (TypeError, ValueError) as error:
        raise Refused(400, str(error)) from None


async def while_there(request: Request, work: asyncio.Future[T]) -> T:
    """The result of work, as long as the client waits for it."""
    leaving = asyncio.create_task(_leaves(request))
    leaving.add_done_callback(lambda _: work.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled():
            raise ClientGone from None
        raise
    finally:
        leaving.cancel()


async def _leaves(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def fields(request: Request) -> dict[str, Any]:
    """The body of a request, JSON or a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        form = await request.form()
        return {name: value for name, value in form.items() if isinstance(value, str)}
    given = await request.body()
    # curl -d calls JSON a form as well, unless it is told otherwise.
    as_form = kind == "application/x-www-form-urlencoded" and not given.lstrip().startswith(b"{")
    try:
        if as_form:
            return urlencoded(given)
        body = json.loads(given)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is no JSON object")
    return body


def urlencoded(body: bytes) -> dict[str, Any]:
    """The fields of a form in UTF-8, whose characters may also be there as they are, as ``curl -d`` sends them."""
    try:
        return dict(parse_qsl(body.decode(), True, errors="strict", max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Refused(
            400, f"the form is not in UTF-8, or has more than {MAX_FIELDS} fields"
        ) from None


def flag(body: dict[str, Any], name: str) -> bool:
    """Whether a field is true; a word such as ``"false"`` is none of the two."""
    value = body.get(name)
    if value not in (None, True, False):
        raise Refused(400, f"{name}: give true or false")
    return bool(value)


def texts(body: dict[str, Any], name: str, sentences: Sequence[str] | None = None) -> Sequence[str]:
    """A string or a list of strings of a body; for ``sentences`` one string is for all, and nothing is ``""``."""
    value = body.get(name)
    if sentences is not None and (value is None or isinstance(value, str)):
        value = [value or ""] * len(sentences)
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value) or not value:
        raise Refused(400, f"{name}: give a string or a list of strings")
    if any("\ud800" <= character <= "\udfff" for one in value for character in one):
        raise Refused(400, f"{name}: there is half a surrogate pair in it")
    if sentences is not None and len(value) != len(sentences):
        raise Refused(400, f"{name}: {len(value)} of them for {len(sentences)} sentences")
    return value


def _event(name: str, told: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(told, ensure_ascii=False)}\n\n"


def hypotheses(found: Sequence[Sequence[Hypothesis]]) -> dict[str, Any]:
    """N-best lists as JSON."""

    def as_json(one: Hypothesis) -> dict[str, Any]:
        seen = {} if one.attention is None else {"attention": one.attention.tolist()}
        return {name: value for name, value in vars(one).items() if name != "attention"} | seen

    return {"hypotheses": [[as_json(one) for one in ranked] for ranked in found]}
