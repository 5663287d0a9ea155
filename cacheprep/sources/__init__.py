"""Where weights come from: each source lists what it holds, and opens ranges of exactly that.

One file per source. Adding one: a class that fits `Source`, and its scheme in `_SCHEMES`.
"""

from __future__ import annotations

from cacheprep.sources.source import Source

__all__ = ["Source"]
