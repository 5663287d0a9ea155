"""warmroute's router: an Envoy external processor that keeps equal prompt prefixes on the same LLM engine."""

from importlib.metadata import version

__version__ = version("warmroute")
