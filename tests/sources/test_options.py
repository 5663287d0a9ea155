"""Options of sources: what is refused and why, and patterns as the Hub has them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from huggingface_hub.utils._paths import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.commands.source_options import source_options
from cacheprep.failures import Failure, Reason
from cacheprep.listing import Verification
from cacheprep.sources import Source, SourceOptions, source_of, source_of_listing
from cacheprep.sources.files import FilesSource
from cacheprep.sources.http import HttpSource
from cacheprep.sources.huggingface import HuggingFaceSource
from cacheprep.sources.jumpstart import JumpStartSource
from cacheprep.sources.s3 import S3Source

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endpoint_url", "127.0.0.1:9000"),
        ("endpoint_url", "ftp://host"),
        ("endpoint_url", "http://[::1"),
        ("endpoint_url", "http://host:port"),
        ("hub_endpoint", "https://"),
        ("manifest_url", "SHA256SUMS"),
        ("region", "Ireland!"),
        ("revision", ""),
        ("revision", "a\nb"),
        ("token_file", ""),
        ("token_env", "MY-TOKEN"),
        ("jumpstart_bucket", "A_B"),
        ("instance_type", "ml.g5 2xlarge"),
        ("allow", ("",)),
        ("ignore", ("/etc/*",)),
        ("verification", "perhaps"),
        ("timeout_s", 0),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(option: str, value: Any) -> None:
    with pytest.raises(Failure) as caught:
        SourceOptions(**{option: value})
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.message.startswith(f"{option} ")
    assert ": " in caught.value.message


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(Failure) as caught:
        SourceOptions(endpoint_url="https://user:secret@host/")
    assert "secret" not in caught.value.message


def test_one_token_only() -> None:
    with pytest.raises(Failure, match="token_env"):
        SourceOptions(token_env="A", token_file="/b")


@pytest.mark.parametrize("path", ["models/llama", "./llama", "llama"])
def test_a_relative_path_is_refused_as_one(path: str) -> None:
    with pytest.raises(Failure, match="a relative path is not taken"):
        source_of(path, SourceOptions())


def test_options_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SourceOptions().region = "us-east-1"  # type: ignore[misc]


patterns = st.lists(
    st.text("ab*?./[]", min_size=1, max_size=5).filter(lambda p: not p.startswith("/")), max_size=3
)


@given(st.text("ab./", min_size=1, max_size=8), patterns, patterns)
def test_patterns_let_through_what_the_hub_would(name: str, allow: list[str], ignore: list[str]) -> None:
    options = SourceOptions(allow=tuple(allow), ignore=tuple(ignore))
    theirs = list(filter_repo_objects([name], allow_patterns=allow or None, ignore_patterns=ignore))
    assert options.wants(name) == bool(theirs)


def test_every_source_fits_the_protocol(tmp_path: Path) -> None:
    options = SourceOptions()
    made: list[Source] = [
        S3Source("s3://bucket/llama/", options),
        HuggingFaceSource("hf://meta/llama", options),
        FilesSource(str(tmp_path), options),
        HttpSource("https://host/llama", options),
        JumpStartSource("jumpstart://llama", options),
    ]
    urls = ("s3://bucket/llama/", "hf://meta/llama", str(tmp_path), "https://host/llama", "jumpstart://llama")
    assert [type(source_of(url, options)) for url in urls] == [type(source) for source in made]
    for source in made:
        source.close()


@pytest.mark.parametrize("url", ["", "llama", "ftp://host/x", "s3:/bucket", "://x", "s3://bucket/\x1b[2J"])
def test_what_is_no_url_of_a_source_is_refused(url: str) -> None:
    with pytest.raises(Failure) as caught:
        source_of(url, SourceOptions())
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("url", "option", "value"),
    [
        ("s3://bucket/llama/", "revision", "v2"),
        ("s3://bucket/llama/", "token_env", "TOKEN"),
        ("hf://meta/llama", "region", "eu-west-1"),
        ("hf://meta/llama", "accept_eula", True),
        ("/models/llama", "revision", "v2"),
        ("/models/llama", "token_file", "/nope"),
        ("https://host/llama", "endpoint_url", "https://host"),
        ("jumpstart://llama", "revision", "v2"),
    ],
)
def test_an_option_of_another_kind_of_source_is_refused_and_not_left_aside(
    url: str, option: str, value: Any
) -> None:
    given = SourceOptions(**{option: value})
    with pytest.raises(Failure) as caught:
        source_of(url, given)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.message.startswith(f"{option} {value!r}: ")
    source_of_listing(url, given).close()


@source_options
def _given(options: SourceOptions) -> SourceOptions:
    return options


COMMAND = click.command()(_given)


def test_the_command_line_has_every_option_and_the_page_explains_it() -> None:
    assert {parameter.name for parameter in COMMAND.params} == {
        f.name for f in dataclasses.fields(SourceOptions)
    }
    page = PAGE.read_text()
    for parameter in COMMAND.params:
        assert f"`{parameter.opts[0]}" in page, parameter.opts


def test_the_command_line_makes_the_same_options() -> None:
    arguments = [
        "--allow",
        "*.json",
        "--verification",
        "source-digest",
        "--region",
        "eu-west-1",
        "--timeout",
        "5",
    ]
    made = COMMAND.main(arguments, standalone_mode=False)
    assert made == SourceOptions(
        allow=("*.json",), verification=Verification.SOURCE_DIGEST, region="eu-west-1", timeout_s=5
    )
    assert COMMAND.main([], standalone_mode=False) == SourceOptions()


@pytest.mark.parametrize(
    "url", ["s3://user:hunter2@bucket/llama", "hf://user:hunter2@org/model", "https://user:hunter2@host/x"]
)
@pytest.mark.parametrize("command", [("fetch",), ("sources", "resolve"), ("ensure",), ("estimate",)])
def test_a_password_in_a_url_is_refused_and_shown_nowhere(
    url: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    more = {
        "fetch": ["--to", str(tmp_path)],
        "ensure": ["--to", str(tmp_path)],
        "estimate": ["--disk", "1TB"],
    }
    cacheprep = [sys.executable, "-m", "cacheprep", *command, url, *more.get(command[0], [])]
    ended = subprocess.run(cacheprep, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "leave the credentials out" in ended.stderr
    assert "hunter2" not in ended.stdout + ended.stderr
