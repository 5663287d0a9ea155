"""Policies by name, with settings: what `--policy` takes.

`PREFIX_AWARE`, `PREFIX_AWARE:concurrencyThreshold=32`, and with several values of a setting, separated by
`|`, one policy for each combination: `PREFIX_AWARE:prefixLength=1024|4096,concurrencyThreshold=8|16`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import product
from typing import NamedTuple

from extproc.pool.ease import SlowStart
from extproc.replay.peers import load
from extproc.replay.peers.bounded_hash import BoundedHash
from extproc.replay.peers.fixed_prefix import FixedPrefix
from extproc.replay.peers.mean_sigma import MeanSigma
from extproc.replay.peers.radix_tree import RadixTree
from extproc.replay.peers.scored import Scored
from extproc.replay.peers.session_hash import SessionHash
from extproc.replay.policy import Make, Policy, Serving
from extproc.routing import Balance, build

MOST_COMBINATIONS = 64


class Setting(NamedTuple):
    """A number that a policy takes: name of the argument and range."""

    argument: str
    least: float
    most: float
    whole: bool = True
    word: str = ""
    """What may stand there instead of a number, for None; empty: nothing."""

    @property
    def range(self) -> str:
        """What it may be, in words."""
        number = f"{'a whole number' if self.whole else 'a number'} from {self.least:g} to {self.most:g}"
        return f"{self.word} or {number}" if self.word else number


class Kind(NamedTuple):
    """A policy that can be asked for."""

    about: str
    make: Callable[..., Policy]
    settings: Mapping[str, Setting] = {}


class Named(NamedTuple):
    """A policy with its settings, ready to be made for each replica."""

    label: str
    make: Make


def _serving(name: str) -> Callable[..., Policy]:
    def make(
        *,
        factor: float = 1.25,
        floor: float = 8,
        prefix_length: int | None = None,
        threshold: int = 256,
        window: float = SlowStart().window,
    ) -> Policy:
        return Serving(
            build(
                name,
                prefix_length="auto" if prefix_length is None else prefix_length,
                concurrency_threshold=threshold,
                balance=Balance(factor, int(floor)),
            ),
            SlowStart(window=window),
        )

    return make


_THRESHOLD = Setting("threshold", 1, 1024)
_LENGTH = Setting("length", 1024, 65_536)
_SLOW_START = {"slowStart": Setting("window", 0.0, 3600.0, whole=False)}
_OURS = {
    "concurrencyThreshold": _THRESHOLD,
    "balanceFactor": Setting("factor", 1.01, 100.0, whole=False),
    "balanceFloor": Setting("floor", 1, 1024),
    **_SLOW_START,
}

KINDS: Mapping[str, Kind] = {
    "RANDOM": Kind("as it serves here", _serving("RANDOM"), _SLOW_START),
    "LEAST_OUTSTANDING_REQUESTS": Kind(
        "as it serves here", _serving("LEAST_OUTSTANDING_REQUESTS"), _SLOW_START
    ),
    "PREFIX_AWARE": Kind(
        "as it serves here",
        _serving("PREFIX_AWARE"),
        {**_OURS, "prefixLength": Setting("prefix_length", 1024, 65_536, word="auto")},
    ),
    "random": Kind("any endpoint", load.Random),
    "round-robin": Kind("one after the other", load.RoundRobin),
    "least-in-flight": Kind("own counts, no reports", load.LeastInFlight),
    "fixed-prefix": Kind(
        "as SageMaker: hash of the first bytes, threshold",
        FixedPrefix,
        {"length": _LENGTH, "threshold": _THRESHOLD},
    ),
    "bounded-hash": Kind(
        "as KubeAI: consistent hashing with bounded loads",
        BoundedHash,
        {"length": _LENGTH, "factor": Setting("mean_load_factor", 1.0, 100.0, whole=False)},
    ),
    "radix-tree": Kind(
        "as SGLang's gateway",
        RadixTree,
        {
            "cacheThreshold": Setting("cache_threshold", 0.0, 1.0, whole=False),
            "absThreshold": Setting("abs_threshold", 0, 10_000),
            "relThreshold": Setting("rel_threshold", 1.0, 100.0, whole=False),
        },
    ),
    "scored": Kind(
        "as llm-d: prefix, queue, KV usage",
        Scored,
        {
            "prefix": Setting("prefix", 0.0, 100.0, whole=False),
            "queue": Setting("queue", 0.0, 100.0, whole=False),
            "kvUsage": Setting("kv_usage", 0.0, 100.0, whole=False),
        },
    ),
    "mean-sigma": Kind(
        "as AIBrix: longest match below mean + sigma",
        MeanSigma,
        {
            "absDifference": Setting("abs_difference", 0, 10_000),
            "sigmas": Setting("sigmas", 0.0, 100.0, whole=False),
        },
    ),
    "session-hash": Kind("hash of the session header", SessionHash),
}

DEFAULT = ("PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS", "RANDOM")


class PolicyError(ValueError):
    """A policy that cannot be had as written; the text says what is possible."""


def parse(text: str) -> list[Named]:
    """The policies that a text asks for, one for each combination of values. Raises `PolicyError`."""
    name, _, rest = text.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        near = get_close_matches(name, KINDS, 1, 0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise PolicyError(f"policy {name!r}: {hint}expected one of {', '.join(KINDS)}")
    settings: dict[str, list[str]] = {}
    for part in filter(None, rest.split(",")):
        setting, equals, values = part.partition("=")
        if setting not in kind.settings or not equals:
            takes = ", ".join(kind.settings) or "none"
            raise PolicyError(f"policy {name}: no setting {setting!r}; it takes {takes}, as name=value")
        settings[setting] = values.split("|")
    combinations = list(product(*settings.values()))
    if len(combinations) > MOST_COMBINATIONS:
        raise PolicyError(f"policy {name}: {len(combinations)} combinations, at most {MOST_COMBINATIONS}")
    return [_named(name, kind, dict(zip(settings, values, strict=True))) for values in combinations]


def _named(name: str, kind: Kind, values: Mapping[str, str]) -> Named:
    if values.get("prefixLength", "auto") == "auto":
        for setting in values:
            if setting.startswith("balance"):
                raise PolicyError(f"policy {name}: {setting} counts only with a number as prefixLength")
    arguments = {
        kind.settings[setting].argument: _number(name, setting, kind.settings[setting], value)
        for setting, value in values.items()
    }
    label = name + "".join(f" {setting}={value}" for setting, value in values.items())
    return Named(label, lambda: kind.make(**arguments))


def _number(name: str, setting: str, rule: Setting, text: str) -> float | None:
    if rule.word and text == rule.word:
        return None
    try:
        value: float = int(text) if rule.whole else float(text)
    except ValueError:
        value = float("nan")
    if not rule.least <= value <= rule.most:
        raise PolicyError(f"policy {name}: {setting}={text}: expected {rule.range}")
    return value
