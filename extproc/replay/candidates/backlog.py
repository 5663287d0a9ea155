"""When each endpoint will have computed the prompts that it was sent: an estimate that is put right again and
again.

Engines compute prompts in the order in which they come. So an endpoint is predicted to be free at the later
of now and its last prediction, plus the new prompt's tokens over the speed. Two things are known for sure and
put the prediction right:

- a response has ended: its prompt and all before it are computed, what was sent after it may not be;
- the engine reports how many requests wait: just the last so many are not begun, and at most one more is
  being computed.

Speed is what the engines' own counters say: tokens computed and requests begun over the seconds in which they
prefilled. It only bridges the time between two reports, so it may be wrong by a factor of two.
"""

from __future__ import annotations

from collections import deque

UNKNOWN_SPEED = 8000.0
"""Tokens per second before engines have said anything: a 70B model on four or eight GPUs."""
REQUEST_TOKENS = 256.0
"""What a request costs beside its tokens, as tokens: scheduling, launch, sampling, its share of decoding."""
KNOWN_AS_S = 1.0
"""Seconds of prefill that the speed assumed at first weighs as much as."""
FORGET_AFTER_S = 600.0
"""Seconds of prefill, over all engines, after which older ones count half: speed changes with the traffic."""


class Speed:
    """Prompt tokens per second of the engines of a pool, which are taken to be alike; a request costs
    `REQUEST_TOKENS` beside its own."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = UNKNOWN_SPEED * KNOWN_AS_S
        self._seconds = KNOWN_AS_S

    @property
    def tokens_per_s(self) -> float:
        """The mean of what was observed."""
        return self._tokens / self._seconds

    def observe(self, tokens: float, requests: int, seconds: float) -> None:
        """An engine prefilled for so many seconds and computed that meanwhile."""
        if seconds > 0.0 and tokens >= 0.0 and requests >= 0:
            keep = 0.5 ** (seconds / FORGET_AFTER_S)
            self._tokens = keep * self._tokens + tokens + REQUEST_TOKENS * requests
            self._seconds = keep * self._seconds + seconds


class Work:
    """One prompt on an endpoint's list."""

    __slots__ = ("at", "backlog", "done", "tokens")

    def __init__(self, backlog: Backlog, tokens: float, at: float) -> None:
        self.backlog = backlog
        self.tokens = tokens
        self.at = at
        self.done = False


class Backlog:
    """The prompts sent to one endpoint and perhaps not yet computed. Times are seconds, one clock."""

    __slots__ = ("_report_at", "_speed", "_works", "free_at")

    def __init__(self, speed: Speed) -> None:
        self.free_at = 0.0
        """When the endpoint is predicted to have computed all of them."""
        self._speed = speed
        self._works: deque[Work] = deque()
        self._report_at = -1.0

    def add(self, tokens: float, at: float) -> Work:
        """A prompt was sent at `at` of which this many tokens have to be computed.

        It may come late, from another replica; what was sent before the last report is in that report
        already.
        """
        work = Work(self, tokens + REQUEST_TOKENS, at)
        later = []
        while self._works and self._works[-1].at > at:
            later.append(self._works.pop())
        self._works.append(work)
        self._works.extend(reversed(later))
        if at > self._report_at:
            self.free_at = max(self.free_at, at) + work.tokens / self._speed.tokens_per_s
        return work

    def ended(self, work: Work, now: float) -> None:
        """The response to this prompt has ended."""
        if work.done:
            return
        while self._works:
            first = self._works.popleft()
            first.done = True
            if first is work:
                break
        left = sum(one.tokens for one in self._works) / self._speed.tokens_per_s
        self.free_at = min(self.free_at, now + left)

    def reported(self, waiting: int, typical: float, now: float) -> None:
        """The engine has `waiting` requests that are not begun.

        Those that are not on the list came from elsewhere: they count as `typical` tokens each.
        """
        works, speed = self._works, self._speed.tokens_per_s
        while len(works) > waiting + 1:
            works.popleft().done = True
        self._report_at = now
        most = sum(work.tokens for work in works) + max(0, waiting - len(works)) * typical
        least = most - (works[0].tokens if len(works) > waiting else 0.0)
        self.free_at = min(max(self.free_at, now + least / speed), now + most / speed)
