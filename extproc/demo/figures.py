"""Figures out of raw samples and Prometheus pages. Pure, apart from `scrape`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families


class Series(NamedTuple):
    """One time series of a page: name and labels."""

    name: str
    labels: frozenset[tuple[str, str]]


Page = Mapping[Series, float]
"""Values of a Prometheus page."""


def parse(text: str) -> Page:
    """Return the samples of a page in Prometheus' text format."""
    return {
        Series(sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(session: aiohttp.ClientSession, address: str) -> Page:
    """Return the samples of `http://address/metrics`. Raises `aiohttp.ClientError` if there are none."""
    async with session.get(f"http://{address}/metrics") as reply:
        reply.raise_for_status()
        return parse(await reply.text())


def total(page: Page, name: str, **labels: str) -> float:
    """Return the sum of all series called `name` that carry `labels`; 0 if there is none."""
    wanted = set(labels.items())
    return sum(value for series, value in page.items() if series.name == name and wanted <= series.labels)


def grown(before: Page, after: Page, name: str, **labels: str) -> float:
    """Return by how much `total` grew between two pages."""
    return total(after, name, **labels) - total(before, name, **labels)


def percentiles(values: Sequence[float], *wanted: float) -> dict[str, float]:
    """Return percentiles by name (`p50`), linear between samples; empty without samples."""
    if not values:
        return {}
    found = np.percentile(values, wanted)
    return {f"p{name:g}": float(value) for name, value in zip(wanted, found, strict=True)}
