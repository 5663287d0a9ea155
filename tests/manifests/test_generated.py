"""What in manifests/ is made by a command is what the command makes now."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from extproc.commands.envoy_config import command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "attach-plain-envoy.md"


def test_envoy_s_configuration_is_what_the_command_on_its_page_prints(tmp_path: Path) -> None:
    written = re.search(r"^extproc envoy-config (.*?)\n```", PAGE.read_text(), re.S | re.M)
    assert written is not None
    *arguments, output, path = shlex.split(written[1].replace("\\\n", " "))
    assert output == "--output"
    made = tmp_path / "envoy.yaml"
    arguments = [str(ROOT / one) if one.startswith("manifests/") else one for one in arguments]
    result = CliRunner().invoke(command, [*arguments, "--output", str(made)])
    assert result.exit_code == 0, result.output
    assert (ROOT / path).read_text() == made.read_text(), f"print {path} anew: the command is in {PAGE.name}"
