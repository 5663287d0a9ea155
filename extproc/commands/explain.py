"""`extproc explain`: where the router would send a request, and why."""

from __future__ import annotations

import http.client
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import click
import orjson
from pydantic import TypeAdapter, ValidationError

from extproc import __version__, reasons
from extproc.address import subset_of
from extproc.config import ConfigError, EndpointsConfig, Match, load
from extproc.explain import MAX_BODY_BYTES, Asked, ExplainError, explain
from extproc.explanation import Explanation
from extproc.explanation_text import text
from extproc.pool.discovery import file as endpoints_file
from extproc.pool.pool import Pool
from extproc.routing import Strategy
from extproc.strategy import strategy_of

URL_SECONDS = 20.0
"""Longest time that a router may take: one that is busy with another body answers after 10 s."""


class _NotExplainedError(click.ClickException):
    """Ends the command with one line on standard error."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"extproc explain: {self.message}", err=True)


@click.command("explain")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Configuration whose pools are used as in a router that has just started.",
)
@click.option("--url", help="Ask the router that runs there, at the address of its `admin` key.")
@click.option("--pool", help="The pool that takes the request. [default: the one that its model leads to]")
@click.option("--route", help="Name of the gateway's route that brings it. [default: any]")
@click.option("--subset", help="The only endpoints, as the gateway names them: IP:PORT[,IP:PORT...].")
@click.option("--path", default="", help="The request's path. [default: the API is told by the body's shape]")
@click.option("--content-encoding", default="", help="How the body is compressed: gzip, deflate, br or zstd.")
@click.option("--incomplete", is_flag=True, help="The body is the first part of a longer one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--show-text", is_flag=True, help="Print the text of the prompt too.")
def command(
    file: Path | None,
    url: str | None,
    pool: str | None,
    route: str | None,
    subset: str | None,
    path: str,
    content_encoding: str,
    incomplete: bool,
    as_json: bool,
    show_text: bool,
) -> None:
    """Say where the router would send a request, and why: extproc explain --config FILE < body.json

    Reads the request's body from standard input. With neither --config nor --url only the prompt is
    explained: API, isolation scope, content and block keys. Nothing is sent to an engine, and the router
    that is asked does not change.

    Exits 0; 2 if there is nothing to explain, with one line on standard error that says why.
    """
    if file is not None and url is not None:
        raise _NotExplainedError("--config and --url exclude each other: keep one")
    for option, value in (("--pool", pool), ("--route", route), ("--subset", subset)):
        if value is not None and file is None and url is None:
            raise _NotExplainedError(f"{option} needs --config, or --url of a running router")
    named = None if subset is None else subset_of([subset])
    asked = Asked(_standard_input(), path, not incomplete, content_encoding, pool, show_text, route, named)
    explained = _at_rest(file, asked) if url is None else _of_router(url, asked)
    if as_json:
        click.echo(orjson.dumps(explained, option=orjson.OPT_INDENT_2))
    else:
        click.echo(text(explained))


def _standard_input() -> bytes:
    if sys.stdin.isatty():
        raise _NotExplainedError(
            "the request's body is read from standard input: extproc explain < body.json"
        )
    body = sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
    if not body:
        raise _NotExplainedError("standard input is empty; it takes the body: extproc explain < body.json")
    if len(body) > MAX_BODY_BYTES:
        raise _NotExplainedError(f"the body has more than {MAX_BODY_BYTES} bytes")
    return body


# --- Without a router ---


class _Target(NamedTuple):
    """As in `extproc.explain.Target`."""

    pool: Pool
    strategy: Strategy
    match: Match | None
    honours_subset: bool


def _at_rest(file: Path | None, asked: Asked) -> Explanation:
    targets: list[_Target] = []
    unknown: dict[str, str] = {}
    try:
        config = None if file is None else load(file)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(_NotExplainedError.exit_code)
    for settings in () if config is None else config.pools:
        pool = Pool(settings.name)
        try:
            pool.set_endpoints(_endpoints(settings.endpoints))
        except ValueError as error:
            unknown[pool.name] = str(error)
        targets.append(_Target(pool, strategy_of(settings), settings.match, settings.endpoint_subset))
    try:
        explained = explain(asked, targets, time.monotonic(), random.Random())
    except ExplainError as error:
        raise _NotExplainedError(str(error)) from None
    if explained.pool is None:
        return explained
    if explained.pool.name in unknown:
        raise _NotExplainedError(f"pool {explained.pool.name}: {unknown[explained.pool.name]}")
    return replace(explained, notes=(*explained.notes, reasons.AT_REST))


def _endpoints(where: EndpointsConfig) -> tuple[str, ...]:
    """Those that a file names; ValueError says why there are none."""
    if where.static is not None:
        return where.static
    if where.file is not None:
        return endpoints_file.read(where.file).addresses
    raise ValueError("its endpoints are in Kubernetes, which only a running router reads: use --url")


# --- Of a router that runs ---


def _of_router(url: str, asked: Asked) -> Explanation:
    status, answer = _post(url, asked)
    if status != 200:
        raise _NotExplainedError(
            _error(answer) or f"{url} answers with HTTP {status}: is it a router's `admin`?"
        )
    try:
        return TypeAdapter(Explanation).validate_json(answer)
    except ValidationError:
        raise _NotExplainedError(f"{url} answers in another form: is it extproc {__version__}?") from None


def _error(answer: bytes) -> str:
    """What a router says is wrong; empty if it is no router."""
    try:
        return str(orjson.loads(answer)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def _post(url: str, asked: Asked) -> tuple[int, bytes]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host = None
    if not host or parts.scheme != "http" or parts.path.strip("/") or parts.query:
        raise _NotExplainedError(f"--url {url}: must be http://HOST:PORT, such as http://127.0.0.1:9005")
    named = {
        "path": asked.path,
        "pool": asked.pool or "",
        "incomplete": "" if asked.complete else "1",
        "show_text": "1" if asked.show_text else "",
    }
    given = {name: value for name, value in named.items() if value}
    if asked.route is not None:
        given["route"] = asked.route
    if asked.subset is not None:
        given["subset"] = ",".join(asked.subset)
    query = urlencode(given)
    headers = {"Content-Encoding": asked.encoding} if asked.encoding else {}
    connection = http.client.HTTPConnection(host, port, timeout=URL_SECONDS)
    try:
        connection.request("POST", f"/explain?{query}", asked.body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except OSError as error:
        said = error.strerror or str(error)
        raise _NotExplainedError(
            f"{url} cannot be reached: {said}; a router listens there if its configuration has `admin`"
        ) from None
    except (http.client.HTTPException, ValueError):
        raise _NotExplainedError(f"{url} does not answer in HTTP: is it a router's `admin`?") from None
    finally:
        connection.close()
