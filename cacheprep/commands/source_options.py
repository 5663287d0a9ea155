"""The options of a source, for every command that reads one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cacheprep.listing import Verification
from cacheprep.sources.options import SourceOptions

_OPTIONS = (
    click.option(
        "--allow", multiple=True, metavar="PATTERN", help="Only files like *.safetensors; repeatable."
    ),
    click.option("--ignore", multiple=True, metavar="PATTERN", help="Not files like *.bin; repeatable."),
    click.option(
        "--verification",
        type=click.Choice([word.value for word in Verification]),
        default=Verification.FIRST_READ.value,
        help="source-digest: refuse a source that has no cryptographic digest of some file.",
    ),
    click.option("--endpoint-url", metavar="URL", help="S3: the server, for stores other than AWS."),
    click.option("--region", help="S3, JumpStart: the bucket's region."),
    click.option("--requester-pays", is_flag=True, help="S3: agree to pay for requests and transfer."),
    click.option("--revision", show_default="main", help="Hub: branch, tag or commit."),
    click.option("--hub-endpoint", metavar="URL", show_default="$HF_ENDPOINT", help="Hub: a mirror."),
    click.option("--token-file", metavar="FILE", help="Hub, http: file with a bearer token."),
    click.option("--token-env", metavar="NAME", help="Hub, http: environment variable with a bearer token."),
    click.option(
        "--manifest-url", metavar="URL", show_default="SHA256SUMS below URL", help="http: the manifest."
    ),
    click.option("--instance-type", metavar="TYPE", help="JumpStart: take this instance type's variant."),
    click.option("--jumpstart-bucket", metavar="BUCKET", help="JumpStart: instead of the public bucket."),
    click.option("--accept-eula", is_flag=True, help="JumpStart: the licence of a gated model is accepted."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.05, 3600),
        default=30.0,
        help="Seconds to wait for a connection, and for the next byte.",
    ),
)
_NAMES = tuple(SourceOptions.__slots__)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of a source; the command gets them as one argument `options`, a `SourceOptions`.

    Put it below `@click.command` as any `@click.option`. Raises Failure(InvalidRequest) for a wrong value.
    """

    @wraps(command)
    def with_options(*arguments: Any, **named: Any) -> Any:
        given = {name: named.pop(name) for name in _NAMES}
        given["verification"] = Verification(given["verification"])
        return command(*arguments, options=SourceOptions(**given), **named)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options
