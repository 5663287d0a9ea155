"""warmroute's cache warmer: model weights and images on nodes before the pods that need them."""

from importlib.metadata import version

__version__ = version("warmroute")
