"""How Kubernetes writes sizes, times and selectors."""

from __future__ import annotations

import pytest

from extproc.doctor.inventory import duration, merged, quantity, selects


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("32768", 32768),
        (32768, 32768),
        ("8Mi", 8 * 1024**2),
        ("1Ki", 1024),
        ("2G", 2 * 1000**3),
        ("5k", 5000),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("eight", None),
        ("8MiB", None),
        (None, None),
    ],
)
def test_sizes(written: object, size: int | None) -> None:
    assert quantity(written) == size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0s", 0),
        ("500ms", 0.5),
        ("1h30m", 5400),
        ("10s", 10),
        ("", None),
        ("10", None),
        ("1d", None),
        (None, None),
    ],
)
def test_times(written: object, seconds: float | None) -> None:
    assert duration(written) == seconds


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({}, True),
        ({"matchLabels": {"app": "llm"}}, True),
        ({"matchLabels": {"app": "llm", "tier": "gpu"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["llm", "x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors(selector: object, taken: bool) -> None:
    assert selects(selector, {"app": "llm"}) is taken


def test_a_merge_keeps_what_is_not_said_again() -> None:
    base = {"retry": {"numRetries": 4, "retryOn": {"triggers": ["reset"]}}, "timeout": 1}
    assert merged(base, {"retry": {"numRetries": 1}}) == {
        "retry": {"numRetries": 1, "retryOn": {"triggers": ["reset"]}},
        "timeout": 1,
    }
