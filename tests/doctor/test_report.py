"""Findings for people and for programs."""

from __future__ import annotations

from extproc.doctor.diagnosis import diagnose
from extproc.doctor.report import WIDTH, as_json, as_text
from tests.doctor import sound


def test_a_sound_attachment_is_told_in_two_lines() -> None:
    evidence = sound.behind_an_http_route().evidence()
    assert as_text(evidence, []).splitlines() == [
        "Service warmroute/extproc is asked by HTTPRoute llm/llm",
        "",
        "nothing wrong was found",
    ]


def test_each_finding_says_where_what_and_how_to_mend_it() -> None:
    scene = sound.behind_an_http_route()
    del scene.the("ClientTrafficPolicy", "extproc")["spec"]["headers"]
    del scene.the("EnvoyExtensionPolicy", "extproc")["spec"]["extProc"][0]["failOpen"]
    evidence = scene.evidence()
    findings = diagnose(evidence)
    text = as_text(evidence, findings)
    assert "error    ClientTrafficPolicy llm/extproc: pin-not-stripped" in text
    assert "warning  EnvoyExtensionPolicy llm/extproc: fail-closed" in text
    assert "→ set extProc[].failOpen: true" in text
    assert text.endswith("1 error, 1 warning")
    assert max(map(len, text.splitlines())) <= WIDTH

    said = as_json(evidence, findings)
    assert (said["service"], said["attached"]) == ("warmroute/extproc", ["HTTPRoute llm/llm"])
    assert [set(finding) for finding in said["findings"]] == [
        {"name", "severity", "object", "what", "remedy"}
    ] * 2


def test_a_router_that_nobody_asks_is_told_so() -> None:
    scene = sound.behind_an_http_route()
    scene.remove("EnvoyExtensionPolicy", "extproc")
    assert "is asked by nobody" in as_text(scene.evidence(), [])
