"""Bearer tokens: where they may be, read anew for each use so that a rotated one is seen."""

from __future__ import annotations

import os
from pathlib import Path

from cacheprep.failures import Failure, Reason
from cacheprep.sources.options import SourceOptions

_MAX_BYTES = 16 << 10


def given_token(options: SourceOptions) -> str | None:
    """The token that the options name, None if they name none.

    Raises Failure: InvalidRequest for a file or variable without a token, AccessDenied for a file that may
    not be read.
    """
    if options.token_file is not None:
        return _token("token_file", options.token_file, _content(Path(options.token_file)))
    if options.token_env is not None:
        return _token("token_env", options.token_env, os.environ.get(options.token_env, ""))
    return None


def hub_token(options: SourceOptions) -> str | None:
    """The token for the Hub: what the options name, else `HF_TOKEN`, else the file of `hf auth login`.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    token = given_token(options)
    if token is not None:
        return token
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name, "").strip():
            return _token("token_env", name, os.environ[name])
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    if not path.is_file():
        return None
    return _token("HF_TOKEN_PATH", str(path), _content(path))


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", "replace")
    except PermissionError as error:
        raise Failure(
            Reason.ACCESS_DENIED,
            f"token_file {str(path)!a}: {error.strerror}; let uid {os.geteuid()} read it",
        ) from error
    except OSError as error:
        raise Failure(
            Reason.INVALID_REQUEST, f"token_file {str(path)!a}: {error.strerror}; name a file with a token"
        ) from error


def _token(option: str, where: str, text: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Failure(Reason.INVALID_REQUEST, f"{option} {where!a}: holds no token; write one line with it")
    return token
