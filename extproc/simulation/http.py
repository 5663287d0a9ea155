"""The engine model served over HTTP in real time, with the OpenAI-compatible surface of a vLLM server.

POST /v1/chat/completions and /v1/completions (streamed or not), GET /v1/models, /health and /metrics, POST
/reset_prefix_cache. Anything else answers 404. Every reply, errors included, names the engine
(`x-simulated-engine`) and describes the request as it arrived: its body (`x-request-body-bytes`,
`x-request-body-sha256`) and the endpoint that it was pinned to, if any (`x-request-pin`). So a test sees
which engine served, whether the router had asked for it, and that no byte was changed. Output is
pseudo-random text, the same for the same prompt and seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from time import time
from typing import Any

import orjson
from aiohttp import web

from extproc.address import Address
from extproc.simulation import exposition, tokens
from extproc.simulation.model import Engine, Event, Kind, Request, TooLargeError
from extproc.simulation.presets import PRESETS, EngineSpec

PIN_HEADER = "x-gateway-destination-endpoint"
"""The header that names the engine to serve a request (Endpoint Picker Protocol)."""

BODY_LIMIT = 64 * 2**20
"""Largest request body in bytes; larger ones are answered 413."""

_VOCABULARY = (
    " the", " and", " for", " are", " but", " not", " you", " all", " any", " can", " her", " was", " one",
    " our", " out", " day", " get", " has", " him", " his", " how", " man", " new", " now", " old", " see",
)  # fmt: skip
"""Words of one pseudo token each."""

_HEADERS = web.RequestKey("headers", dict[str, str])
"""Headers that every reply to a request carries."""

_Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Settings:
    """How simulated engines are run."""

    spec: EngineSpec = PRESETS["demo"]
    """Speed and size of each engine."""
    seed: int = 1
    """Decides output lengths and texts, together with the prompt."""
    speed: float = 1.0
    """Engine seconds per real second; 2 makes every engine twice as fast."""
    stream_interval: int = 1
    """Tokens per streamed event after the first, as vLLM's `--stream-interval`."""
    mean_output_tokens: int = 128
    """Mean of the drawn output length (exponential), where a request neither says `ignore_eos` nor ends
    earlier."""
    model: str = "simulated"
    """Model name in /v1/models and metrics; requests may name any model."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    name: str = ""
    """Name of a single engine; several get numbers. Empty: `engine-1`, `engine-2`, ..."""


@dataclass(slots=True)
class _Call:
    """A request between the HTTP handler and the model."""

    arrived: float  # engine time
    started: float = 0.0  # when it left the queue, also engine time
    prefilled: float = 0.0  # how many seconds of that it took to its first token
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


@dataclass(frozen=True, slots=True)
class _Job:
    """A parsed generation request."""

    chat: bool
    model: str
    stream: bool
    include_usage: bool
    prompt: tokens.Chain
    output_tokens: int
    text: str
    finish_reason: str
    id: str
    created: int

    def usage(self, generated: int, cached: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt.tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt.tokens + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"chat.completion{kind}" if self.chat else "text_completion"
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "simulated",
            "choices": choices,
        }

    def chunk(self, text: str, finish_reason: str | None = None, *, role: bool = False) -> bytes:
        """Return one SSE event with `text`."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": text} if role else {"content": text}
        else:
            choice["text"] = text
        return b"data: " + orjson.dumps(self.envelope(".chunk", [choice])) + b"\n\n"


class SimulatedEngine:
    """One engine behind one port. Made and stopped by `engines`."""

    def __init__(self, name: str, port: int, settings: Settings) -> None:
        self.name = name
        self.port = port
        """Port it listens on; 0 until started if it was to pick a free one."""
        self.settings = settings
        self.engine = Engine(settings.spec, settings.stream_interval)
        """The model; its counters are live."""
        self._ttft = exposition.Histogram(exposition.TTFT_BUCKETS)
        self._prefill = exposition.Histogram(exposition.REQUEST_BUCKETS)
        self._lag = exposition.Histogram(exposition.TTFT_BUCKETS)
        self._calls: dict[int, _Call] = {}
        self._serial = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._origin = 0.0
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        """`ip:port`, as endpoints are written."""
        return str(Address(self.settings.host, self.port))

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self.address}"

    @property
    def time(self) -> float:
        """The engine's time: seconds since it was started, times `speed`."""
        return (asyncio.get_running_loop().time() - self._origin) * self.settings.speed

    async def start(self) -> None:
        """Listen, with an empty cache and counters at zero. Raises `OSError` if the port is in use."""
        self.engine = Engine(self.settings.spec, self.settings.stream_interval)
        self._origin = asyncio.get_running_loop().time()
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[self._describe])
        app.router.add_route("*", "/{path:.*}", self._route)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that leaves cancels its handler, and thereby its request
            auto_decompress=False,  # the digest is of the bytes on the wire
            shutdown_timeout=0.5,
        )
        await runner.setup()
        listening = socket.socket(socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.settings.host, self.port))
            self.port = listening.getsockname()[1]
            await web.SockSite(runner, listening, backlog=1024).start()
        except BaseException:
            listening.close()
            await runner.cleanup()
            raise
        self._runner = runner

    async def stop(self) -> None:
        """Stop listening and cut every connection; requests in flight are cancelled.

        Idempotent; `start` may follow.
        """
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        if runner.server is not None:
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
        await runner.cleanup()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @web.middleware
    async def _describe(self, request: web.Request, handler: _Reply) -> web.StreamResponse:
        """Read the body and answer every error as JSON with the same headers."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _error(
                413, f"the body is larger than {BODY_LIMIT} bytes", {"x-simulated-engine": self.name}
            )
        request[_HEADERS] = {
            "x-simulated-engine": self.name,
            "x-request-body-bytes": str(len(body)),
            "x-request-body-sha256": sha256(body).hexdigest(),
        }
        if pin := request.headers.get(PIN_HEADER):
            request[_HEADERS]["x-request-pin"] = pin
        return await handler(request)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        headers = request[_HEADERS]
        match request.method, request.path:
            case "POST", "/v1/chat/completions" | "/v1/completions" as path:
                return await self._generate(request, chat=path == "/v1/chat/completions")
            case "GET" | "HEAD", "/v1/models":
                model = {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "simulation"}
                return _json({"object": "list", "data": [model]}, headers)
            case "GET" | "HEAD", "/health":
                return web.Response(text="simulation\n", headers=headers)
            case "GET" | "HEAD", "/metrics":
                self._advance()
                page = exposition.render(
                    self.engine, self.time, self.settings.model, self._ttft, self._prefill, self._lag
                )
                return web.Response(text=page, headers=headers)
            case "POST", "/reset_prefix_cache":
                self._advance()
                done = self.engine.reset_cache()
                return _json({"success": done, "simulation": True}, headers, status=200 if done else 409)
            case method, path:
                return _error(404, f"this simulation has no {method} {path}", headers)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        headers = request[_HEADERS]
        serial = next(self._serial)
        try:
            job = self._parse(
                await request.read(), request.headers.get("content-encoding", ""), serial, chat=chat
            )
        except tokens.PromptError as error:
            return _error(400, str(error), headers)
        self._advance()
        call = _Call(self.time)
        output_keys = job.prompt.output_keys(job.text.encode(), self.settings.spec.block_tokens)
        try:
            self.engine.submit(
                Request(serial, job.prompt.keys, job.prompt.tokens, job.output_tokens, output_keys),
                call.arrived,
            )
        except TooLargeError as error:
            return _error(400, str(error), headers)
        self._calls[serial] = call
        self._plan()
        try:
            if job.stream:
                return await self._stream(request, job, call, headers)
            while (event := await call.events.get()).kind is not Kind.FINISHED:
                pass
            return _json(self._whole(job, event), headers)
        finally:
            if self._calls.pop(serial, None) is not None:
                self._advance()
                self.engine.cancel(serial, self.time)
                self._plan()

    def _whole(self, job: _Job, event: Event) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": job.finish_reason}
        if job.chat:
            choice["message"] = {"role": "assistant", "content": job.text}
        else:
            choice["text"] = job.text
        return {**job.envelope("", [choice]), "usage": job.usage(event.tokens, event.cached)}

    async def _stream(
        self, request: web.Request, job: _Job, call: _Call, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream; charset=utf-8"})
        sent = 0
        finished = False
        while not finished:
            event = await call.events.get()
            while not call.events.empty() and event.kind is not Kind.FINISHED:
                event = call.events.get_nowait()  # late here: several events leave as one
            finished = event.kind is Kind.FINISHED
            if event.kind is Kind.STARTED:
                continue
            parts = []
            if event.tokens > sent:
                text = job.text[sent * tokens.TOKEN_BYTES : event.tokens * tokens.TOKEN_BYTES]
                parts.append(job.chunk(text, role=sent == 0))
                sent = event.tokens
            if finished:
                parts.append(job.chunk("", job.finish_reason))
                if job.include_usage:
                    usage = {**job.envelope(".chunk", []), "usage": job.usage(sent, event.cached)}
                    parts.append(b"data: " + orjson.dumps(usage) + b"\n\n")
                parts.append(b"data: [DONE]\n\n")
            if not response.prepared:
                await response.prepare(request)
            await response.write(b"".join(parts))
        await response.write_eof()
        return response

    def _parse(self, body: bytes, encoding: str, serial: int, *, chat: bool) -> _Job:
        if encoding in ("gzip", "deflate"):
            body = _inflate(body)
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise tokens.PromptError(f"the body is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise tokens.PromptError("the body must be an object")
        text = (
            tokens.render_chat(fields.get("messages"), fields.get("tools"))
            if chat
            else tokens.render_completion(fields.get("prompt"))
        )
        model = str(fields.get("model") or self.settings.model)
        scope = tokens.scope(model, str(fields.get("cache_salt") or ""))
        prompt = tokens.chain(text, scope, self.settings.spec.block_tokens)
        output_tokens, finish_reason = self._length(fields, prompt)
        draw = random.Random(prompt.last ^ self.settings.seed)
        options = fields.get("stream_options")
        return _Job(
            chat=chat,
            model=model,
            stream=fields.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            prompt=prompt,
            output_tokens=output_tokens,
            text="".join(draw.choices(_VOCABULARY, k=output_tokens)),
            finish_reason=finish_reason,
            id=f"{'chatcmpl' if chat else 'cmpl'}-simulated-{serial}",
            created=int(time()),
        )

    def _length(self, fields: dict[str, Any], prompt: tokens.Chain) -> tuple[int, str]:
        """Return the number of output tokens and the reason for which the output will end there."""
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise tokens.PromptError("max_tokens must be a positive integer")
        draw = random.Random(~(prompt.last ^ self.settings.seed))
        drawn = 1 + int(draw.expovariate(1 / self.settings.mean_output_tokens))
        if limit is None:
            return drawn, "stop"
        if fields.get("ignore_eos") is True or drawn >= limit:
            return limit, "length"
        return drawn, "stop"

    def _advance(self) -> None:
        """Let the model reach the present and hand out what happened."""
        now = self.time
        for event in self.engine.advance(now):
            self._lag.observe((now - event.time) / self.settings.speed)
            call = self._calls.get(event.id)  # type: ignore[call-overload]  # ids here are serial numbers
            if call is None:
                continue
            if event.kind is Kind.STARTED:
                call.started = event.time
            elif event.kind is Kind.FIRST_TOKEN:
                self._ttft.observe(event.time - call.arrived)
                call.prefilled = event.time - call.started
            elif event.kind is Kind.FINISHED:
                self._prefill.observe(call.prefilled)
                del self._calls[event.id]  # type: ignore[arg-type]
            call.events.put_nowait(event)

    def _plan(self) -> None:
        """Set the timer to the model's next event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.engine.next_event()
        if due != float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._origin + due / self.settings.speed, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        self._plan()


def _inflate(body: bytes) -> bytes:
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        text = decoder.decompress(body, BODY_LIMIT)
    except zlib.error as error:
        raise tokens.PromptError(f"the body cannot be decompressed: {error}") from error
    if decoder.unconsumed_tail:
        raise tokens.PromptError(f"the decompressed body is larger than {BODY_LIMIT} bytes")
    return text


def _json(content: object, headers: dict[str, str], status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(content), status=status, headers=headers, content_type="application/json"
    )


def _error(status: int, message: str, headers: dict[str, str]) -> web.Response:
    """Return an error in the shape of OpenAI's API."""
    content = {"error": {"message": message, "type": "simulation", "code": status}}
    return _json(content, headers, status)


@contextlib.asynccontextmanager
async def engines(
    ports: Sequence[int] | int, settings: Settings | None = None
) -> AsyncIterator[list[SimulatedEngine]]:
    """Serve engines named as the settings say in the running event loop.

    `ports` lists their ports, 0 for a free one, or says how many engines to serve on free ones. Raises
    `OSError` whose text names the address if a port is in use. On exit every connection is cut.
    """
    wanted = [0] * ports if isinstance(ports, int) else list(ports)
    settings = settings or Settings()
    names = [f"{settings.name or 'engine'}-{index}" for index in range(1, len(wanted) + 1)]
    if settings.name and len(wanted) == 1:
        names = [settings.name]
    started = [SimulatedEngine(name, port, settings) for name, port in zip(names, wanted, strict=True)]
    try:
        for engine in started:
            try:
                await engine.start()
            except OSError as error:
                raise OSError(error.errno, f"cannot listen on {engine.address}: {error.strerror}") from error
        yield started
    finally:
        await asyncio.gather(*(engine.stop() for engine in started))
