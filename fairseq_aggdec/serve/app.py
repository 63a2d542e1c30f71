"""The service as an ASGI application; ``aggdec serve`` runs it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from torch import Tensor

from fairseq_aggdec.api.calls import Call
from fairseq_aggdec.api.decoding import Hypothesis
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.serve import libre, page
from fairseq_aggdec.serve.batching import Batcher, WaitingJob
from fairseq_aggdec.serve.bodies import fields, flag, texts
from fairseq_aggdec.serve.guard import HANDLERS, ClientGone, Guard, Metrics, Refused, check_key
from fairseq_aggdec.serve.language_names import names_of
from fairseq_aggdec.serve.limits import TOKENS, RequestLimits, ServiceSettings, Size

T = TypeVar("T")
# Options of a call that a request may have; the others are the service's.
OPTIONS = ("beam", "nbest", "max_len_b", "min_len", "attention", "source_lang", "target_lang")
SCORING = ("sentences", "targets", "attention", "source_lang", "target_lang", "api_key")
READ = 32  # sentences that are read at a time, between those of other requests
BESIDE = ("prefix", "drafts", "targets", "sentences", "api_key", "stream")
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}


class Service:
    """One translator for any number of clients; ``app`` is the ASGI application.

    Raises:
        ValueError: a limit that the translator's own options exceed.
    """

    batcher: Batcher

    def __init__(self, translator: Translator, settings: ServiceSettings | None = None):
        self.translator, self.settings = translator, settings or ServiceSettings()
        self.limits = RequestLimits(translator.loaded, translator.longest, self.settings)
        self.metrics = Metrics()
        self.metrics.waiting.set_function(lambda: len(self.batcher))
        routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", self.page),
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.show_metrics),
            "/languages": ("GET", self.languages),
            "/translate": ("POST", self.translate),
            "/generate": ("POST", self.generate),
        }
        prefix, origins = self.settings.url_prefix, list(self.settings.origins)
        middleware = [
            Middleware(Guard, self.metrics, list(routes), self.settings.max_bytes, prefix)
        ]
        if origins:
            allowed = Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Encoding", "Content-Type"],
            )
            middleware.insert(0, allowed)
        of_service: list[BaseRoute] = [
            Route(path, ask, methods=[how]) for path, (how, ask) in routes.items()
        ]
        self.app = Starlette(
            routes=[Mount(prefix, routes=of_service)] if prefix else of_service,
            middleware=middleware,
            exception_handlers=HANDLERS,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Decodes as long as the application runs."""
        wait, decoded = self.settings.max_wait_ms / 1000, self.metrics.decoded
        self.batcher = Batcher(self.translator, self.limits, wait, decoded)
        self.reader = ThreadPoolExecutor(1, "reading")
        running = asyncio.create_task(self.batcher.run())
        yield
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        self.reader.shutdown(cancel_futures=True)

    async def page(self, request: Request) -> Response:
        text = page.whole(self.translator, bool(self.settings.keys))
        return HTMLResponse(text, headers=SECURITY)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "waiting": len(self.batcher)})

    async def show_metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def languages(self, request: Request) -> Response:
        targets = self.translator.language_support.targets
        names = names_of(targets)
        return JSONResponse(
            [{"code": code, "name": names[code], "targets": to} for code, to in targets.items()]
        )

    async def translate(self, request: Request) -> Response:
        """LibreTranslate's interface."""
        translator = self.translator
        wanted = libre.read(
            await self.fields(request), translator.languages, translator.language_support.all
        )
        check_key(self.settings.keys, request, wanted.api_key)
        options = self.checked(wanted.options(self.translator.loaded.beam))
        lines = [line for line in wanted.lines if line.strip()]
        self.limits.refuse_too_many(len(lines))
        jobs = [WaitingJob(line, options) for line in lines]
        nbest = await self.answers(request, jobs)
        return JSONResponse(wanted.answer([[one.text for one in ranked] for ranked in nbest]))

    async def generate(self, request: Request) -> Response:
        """Everything that a translator offers, as JSON."""
        body = await self.fields(request)
        check_key(self.settings.keys, request, body.get("api_key"))
        sentences = texts(body, "sentences")
        self.limits.refuse_too_many(len(sentences))
        unknown = [name for name in body if name not in (*OPTIONS, *BESIDE)]
        if unknown:
            raise Refused(400, f"there is no option {unknown[0]!r}: there are {', '.join(OPTIONS)}")
        if "targets" in body:
            return await self.score(request, body, sentences)
        streams = flag(body, "stream") or "text/event-stream" in request.headers.get("accept", "")
        beside = {name: texts(body, name, sentences) for name in ("prefix", "drafts")}
        options = {name: body[name] for name in OPTIONS if body.get(name) is not None}
        drafts = {"drafts": beside["drafts"]} if any(beside["drafts"]) else {}
        self.checked(options | drafts)
        jobs = [
            WaitingJob(sentence, options, prefix, draft)
            for sentence, prefix, draft in zip(sentences, *beside.values(), strict=True)
        ]
        if streams:
            return await self.events(request, jobs)
        return await rendered(await self.answers(request, jobs))

    async def score(
        self, request: Request, body: dict[str, Any], sentences: Sequence[str]
    ) -> Response:
        """The log-probabilities of given outputs."""
        if beside := [name for name in body if name not in SCORING]:
            raise Refused(
                400, f"{beside[0]} does not go with targets, which are scored as they are"
            )
        targets = texts(body, "targets")
        pair = {name: body.get(name) for name in ("source_lang", "target_lang")}
        call = or_refuse(Call.of, pair | {"attention": flag(body, "attention")})
        or_refuse(self.translator.language_support.check, call)
        if len(targets) != len(sentences):
            raise Refused(400, f"{len(sentences)} sentences and {len(targets)} targets")
        read = await self.read(self.translator.encode, sentences, call.source_lang)
        written = await self.read(self.translator.encode_target, targets, call.target_lang)
        lengths = [list(map(len, side)) for side in (read, written)]
        longest = max(*lengths[0], *lengths[1])
        # One job a batch: others get their turn between two of them, and a timeout drops the rest.
        size = max(1, min(self.settings.max_batch, self.settings.max_batch * TOKENS // longest))
        jobs = []
        for first in range(0, len(sentences), size):
            one = slice(first, first + size)
            pairs = list(zip(lengths[0][one], lengths[1][one], strict=True))
            weights = sum(source * target for source, target in pairs) if call.attention else 0
            jobs.append(
                WaitingJob(
                    work=partial(self.translator.score_tokens, read[one], written[one], size, call),
                    size=Size(1, longest, sum(lengths[1][one]), weights),
                )
            )
        scored = await self.answers(request, jobs)
        return await rendered([[one] for part in scored for one in part])

    async def fields(self, request: Request) -> dict[str, Any]:
        """The body of a request; ``Refused`` (408) if it does not come in time."""
        try:
            body = fields(request, self.settings.max_bytes)
            return await asyncio.wait_for(body, self.settings.timeout)
        except asyncio.TimeoutError:
            raise Refused(408, "the body of the request did not come in time") from None
        except ClientDisconnect:  # in the middle of it
            raise ClientGone from None

    def checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of a call, if the translator can honour them; else ``Refused`` (400)."""
        call = or_refuse(Call.of, options)
        or_refuse(self.translator.check, call)
        or_refuse(self.limits.check, call)
        return options

    async def read(
        self, encode: Callable[..., Any], texts: Sequence[str], language: str | None
    ) -> list[Tensor]:
        """The tokens of each text, made beside the event loop; ``Refused`` (400) for one that is too long."""

        def encoded(first: int) -> list[Tensor]:
            some = enumerate(texts[first : first + READ], first)
            return [or_refuse(encode, text, number, language) for number, text in some]

        loop, tokens = asyncio.get_running_loop(), list[Tensor]()
        for first in range(0, len(texts), READ):
            tokens += await loop.run_in_executor(self.reader, encoded, first)
        return tokens

    async def submit(self, jobs: Sequence[WaitingJob]) -> None:
        """Puts the sentences of a request into the queue, if they are not too long, too many or too much work."""
        unread = [job for job in jobs if job.work is None]
        if unread:
            language = unread[0].options.get("source_lang")  # that of all
            read = await self.read(
                self.translator.encode, [job.sentence for job in unread], language
            )
            for job, tokens in zip(unread, read, strict=True):
                job.tokens, job.size = tokens, self.limits.size(job.options, len(tokens))
        self.batcher.submit(jobs)

    async def answers(self, request: Request, jobs: Sequence[WaitingJob]) -> list[Any]:
        """Waits for what becomes of jobs. They are dropped when the client goes, or when it takes too long (504)."""
        await self.submit(jobs)
        return await self.waited(request, jobs)

    async def waited(self, request: Request, jobs: Sequence[WaitingJob]) -> list[Any]:
        """Waits, as :meth:`answers` does, for jobs that are in the queue."""
        try:
            answers = asyncio.gather(*(job.answer for job in jobs))
            return await while_there(request, answers, self.settings.timeout)
        except TimeoutError:
            raise Refused(504, f"no answer within {self.settings.timeout:g} s") from None
        finally:
            for job in jobs:
                job.answer.cancel()

    async def events(self, request: Request, jobs: Sequence[WaitingJob]) -> Response:
        """Server-sent events: ``tokens`` whenever some are certain, at the end ``done`` or ``error``."""
        loop, said = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()

        def tell(number: int) -> Callable[[Sequence[str], str], None]:
            def listen(tokens: Sequence[str], text: str) -> None:
                event = {"sentence": number, "tokens": list(tokens), "text": text}
                loop.call_soon_threadsafe(said.put_nowait, ("tokens", event))

            return listen

        for number, job in enumerate(jobs):
            job.listener = tell(number)
        await self.submit(jobs)

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
                nbest = await ending
                yield _event(
                    "done", {"hypotheses": [[as_json(one) for one in ranked] for ranked in nbest]}
                )
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
    """Returns what a check gives; what it has against a value is the client's fault."""
    try:
        return check(*values)
    except (TypeError, ValueError) as error:
        raise Refused(400, str(error)) from None


async def while_there(request: Request, work: asyncio.Future[T], seconds: float) -> T:
    """The result of work, as long as the client waits for it; ``TimeoutError`` after so many seconds."""
    leaving = asyncio.create_task(_leaves(request))
    leaving.add_done_callback(lambda _: work.cancel())
    loop = asyncio.get_running_loop()
    limit = loop.call_later(seconds, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled():
            raise ClientGone from None
        if limit.when() <= loop.time():
            raise TimeoutError from None
        raise
    finally:
        limit.cancel()
        leaving.cancel()


async def _leaves(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def as_json(one: Hypothesis) -> dict[str, Any]:
    """A hypothesis in the types of JSON."""
    seen = {} if one.attention is None else {"attention": one.attention.tolist()}
    return {name: value for name, value in vars(one).items() if name != "attention"} | seen


async def rendered(nbest: Sequence[Sequence[Hypothesis]]) -> Response:
    """N-best lists as JSON, written hypothesis by hypothesis: other requests are served in between."""
    lists = []
    for ranked in nbest:
        written = []
        for one in ranked:
            written.append(json.dumps(as_json(one), ensure_ascii=False, allow_nan=False))
            await asyncio.sleep(0)
        lists.append(f"[{','.join(written)}]")
    return Response(f'{{"hypotheses":[{",".join(lists)}]}}', media_type="application/json")
