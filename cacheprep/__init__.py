"""warmroute's cache warmer: model weights and images on nodes before the pods that need them."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """`__version__`, read when asked for: importlib.metadata takes longer than a whole warm `ensure`."""
    if name == "__version__":
        from importlib.metadata import version

        return version("warmroute")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
