"""The HTTP side: routes, what is refused, and what is written down about each request."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orqa_jax.serve.batching import QueueFull
from orqa_jax.serve.config import CANDIDATES, RETRIEVED, ServeConfig
from orqa_jax.serve.limits import RateLimit
from orqa_jax.serve.openapi import describe
from orqa_jax.serve.pages import docs_page, question_page, security_policy
from orqa_jax.serve.service import Job, NotReady, Service

logger = logging.getLogger(__name__)

# A body that takes longer to arrive is not waited for.
_BODY_SECONDS = 10
_LOADING_RETRY = 5
_LOCAL = ("127.0.0.1", "localhost", "::1")
_DEFAULT_RETRIEVED = 10


class Refused(Exception):
    """An answer to the client other than what it asked for."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def make_app(service: Service) -> Starlette:
    """The ASGI application."""
    config = service.config
    routes = [*_page_routes(config), *_question_routes(service), *_status_routes(service)]
    known = frozenset(route.path for route in routes)
    middleware = [
        Middleware(_Watched, service=service, known=known),
        Middleware(TrustedHostMiddleware, allowed_hosts=_hosts(config), www_redirect=False),
    ]
    if config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["content-type"],
        )
        middleware.append(cors)
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        Refused: _on_refused,
        NotReady: _on_not_ready,
        QueueFull: _on_queue_full,
        HTTPException: _on_http_exception,
        ClientDisconnect: _on_disconnect,
    }
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


def _question_routes(service: Service) -> list[Route]:
    config = service.config
    limit = RateLimit(config.rate, max(config.rate, config.max_questions))

    async def ask(request: Request, jobs: list[Job]) -> list[dict[str, Any]]:
        request.state.questions = [job.question for job in jobs]
        if config.rate:
            client = request.client.host if request.client else ""
            if wait := limit.take(client, len(jobs), time.monotonic()):
                raise Refused(
                    429,
                    "too_many_questions",
                    f"One client may ask {config.rate:g} questions a second; ask again in {wait} "
                    "seconds.",
                    {"Retry-After": str(wait)},
                )
        answering = asyncio.ensure_future(service.ask(jobs))
        gone = asyncio.ensure_future(_disconnect(request))
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not answering.done():
            # Questions that nobody waits for any more keep others waiting.
            answering.cancel()
            raise ClientDisconnect
        try:
            return answering.result()
        except (NotReady, QueueFull):
            raise
        except Exception as error:
            message = "This could not be answered; the log of the service says why."
            raise Refused(500, "internal", message) from error

    async def answer(request: Request) -> Response:
        body = await _read_object(request, config, {"question", "candidates"})
        question = _question(body, "question", config)
        count = _count(body, "candidates", CANDIDATES, CANDIDATES)
        [found] = await ask(request, [Job("answer", question)])
        return JSONResponse(found | {"candidates": found["candidates"][:count]})

    async def answers(request: Request) -> Response:
        body = await _read_object(request, config, {"questions", "candidates"})
        questions = _questions(body, config)
        count = _count(body, "candidates", CANDIDATES, CANDIDATES)
        found = await ask(request, [Job("answer", question) for question in questions])
        cut = [one | {"candidates": one["candidates"][:count]} for one in found]
        return JSONResponse({"answers": cut})

    async def retrieve(request: Request) -> Response:
        body = await _read_object(request, config, {"question", "k"})
        question = _question(body, "question", config)
        k = _count(body, "k", _DEFAULT_RETRIEVED, RETRIEVED)
        [found] = await ask(request, [Job("retrieve", question, k)])
        return JSONResponse(found)

    return [
        Route("/v1/answer", answer, methods=["POST"]),
        Route("/v1/answers", answers, methods=["POST"]),
        Route("/v1/retrieve", retrieve, methods=["POST"]),
    ]


def _status_routes(service: Service) -> list[Route]:
    config = service.config

    async def about(request: Request) -> Response:
        if service.engine is None:
            raise NotReady
        limits = {
            "max_questions": config.max_questions,
            "max_characters": config.max_characters,
            "questions_a_second": config.rate or None,
        }
        failure = {"last_load_failure": service.last_failure}
        return JSONResponse(service.engine.about() | {"limits": limits} | failure)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> Response:
        if service.engine is None:
            raise NotReady
        return JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        text = service.metrics.text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return [
        Route("/v1/about", about),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", metrics),
    ]


def _page_routes(config: ServeConfig) -> list[Route]:
    description = describe(config)
    page, docs = question_page(), docs_page(description)
    policies = {"/": security_policy(page), "/docs": security_policy(docs)}

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policies["/"]})

    async def show_docs(request: Request) -> Response:
        return HTMLResponse(docs, headers={"Content-Security-Policy": policies["/docs"]})

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    return [Route("/", show_page), Route("/docs", show_docs), Route("/openapi.json", openapi)]


def _hosts(config: ServeConfig) -> list[str]:
    """Names to be reached by.

    A page of a foreign site can make its own name mean this machine (DNS rebinding), and so read
    the answers of a service that only listens here; but the name it has to send stays its own.
    """
    local = [f"[{name}]" if ":" in name else name for name in _LOCAL]
    if config.allowed_hosts:
        return [*config.allowed_hosts, *local]
    return local if config.host in _LOCAL else ["*"]


async def _read_object(request: Request, config: ServeConfig, known: set[str]) -> dict[str, Any]:
    """The JSON object of a request's body, without keys but the known ones."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        # Pages of other sites can send anything but this without asking first.
        _refuse(415, "not_json", "Send JSON, with the header Content-Type: application/json.")
    body = await _read_body(request, config.max_body)
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        _refuse(400, "broken_json", f"The body is not JSON in UTF-8: {said}.")
    if not isinstance(found, dict):
        _refuse(400, "not_an_object", "The body has to be a JSON object.")
    if unknown := sorted(found.keys() - known):
        names = ", ".join(sorted(known))
        _refuse(400, "unknown_key", f"There is no key {_shown(unknown[0])}; there are {names}.")
    return found


async def _read_body(request: Request, most: int) -> bytes:
    too_large = f"The body may have {most} bytes; send fewer questions at once."
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        _refuse(413, "body_too_large", too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    _refuse(413, "body_too_large", too_large)
    except TimeoutError:
        _refuse(408, "too_slow", f"The body has to arrive within {_BODY_SECONDS} seconds.")
    return bytes(body)


async def _disconnect(request: Request) -> None:
    """Waits until the client, whose request has been read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _question(body: dict[str, Any], name: str, config: ServeConfig) -> str:
    return _checked(body.get(name), name, config)


def _questions(body: dict[str, Any], config: ServeConfig) -> list[str]:
    found = body.get("questions")
    if not isinstance(found, list) or not found:
        _refuse(400, "no_questions", '"questions" has to be a list of at least one question.')
    if len(found) > config.max_questions:
        _refuse(
            400,
            "too_many_questions",
            f"A request may have {config.max_questions} questions, but has {len(found)}.",
        )
    return [_checked(one, f"questions[{place}]", config) for place, one in enumerate(found)]


def _checked(question: Any, name: str, config: ServeConfig) -> str:
    if not isinstance(question, str):
        _refuse(400, "no_question", f'"{name}" has to be a string.')
    if not question.strip():
        _refuse(400, "empty_question", f'"{name}" is empty; ask something.')
    if len(question) > config.max_characters:
        _refuse(
            400,
            "question_too_long",
            f'"{name}" has {len(question)} characters; {config.max_characters} are allowed.',
        )
    try:
        question.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(400, "broken_unicode", f'"{name}" has half of a surrogate pair.')
    return question


def _count(body: dict[str, Any], name: str, default: int, most: int) -> int:
    found = body.get(name, default)
    if type(found) is not int or not 1 <= found <= most:
        _refuse(400, f"wrong_{name}", f'"{name}" has to be a whole number from 1 to {most}.')
    return found


def _shown(text: str) -> str:
    return json.dumps(text[:80])


def _refuse(status: int, code: str, message: str) -> NoReturn:
    # What is left of a body that was not read to its end is not waited for.
    closing = {"Connection": "close"} if status in (408, 413, 415) else None
    raise Refused(status, code, message, closing)


def _error(
    status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


async def _on_refused(request: Request, refused: Refused) -> Response:
    return _error(refused.status, refused.code, refused.message, refused.headers)


async def _on_not_ready(request: Request, error: NotReady) -> Response:
    again = {"Retry-After": str(_LOADING_RETRY)}
    return _error(503, "loading", "The model is still being loaded; ask again soon.", again)


async def _on_queue_full(request: Request, full: QueueFull) -> Response:
    message = f"Too many questions are waiting; ask again in {full.retry_after} seconds."
    return _error(503, "queue_full", message, {"Retry-After": str(full.retry_after)})


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    """What starlette itself refuses: unknown paths and methods."""
    code = error.detail.lower().replace(" ", "_")
    message = f"{error.detail}; GET /docs describes what there is."
    return _error(error.status_code, code, message, dict(error.headers or {}))


async def _on_disconnect(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody is there to read it, but the log


class _Watched:
    """Counts and logs every request, and sets the headers that all responses have."""

    def __init__(self, app: ASGIApp, service: Service, known: frozenset[str]) -> None:
        self._app, self._service, self._known = app, service, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        scope.setdefault("state", {})
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                    (b"cache-control", b"no-store"),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        metrics, path = self._service.metrics, scope["path"]
        # Paths that clients invent would each become a time series.
        label = path if path in self._known else "other"
        metrics.requests.labels(label, str(status)).inc()
        metrics.seconds.labels(label).observe(seconds)
        questions = scope["state"].get("questions", [])
        client = scope["client"][0] if scope.get("client") else "-"
        line = {
            "client": client,
            "method": scope["method"],
            "path": path[:200],
            "status": status,
            "ms": round(seconds * 1000, 1),
            "questions": questions if self._service.config.log_questions else len(questions),
        }
        # As JSON, a line stays one line whatever was sent.
        logger.info("%s", json.dumps(line))
