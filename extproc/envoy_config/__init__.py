"""A complete Envoy configuration for one pool: typed, rendered, checked.

`Options` says what is wanted, `bootstrap` builds the typed message, `render` prints it, and `validate` asks
the Envoy binary itself. Nothing here knows how the router picks; it only makes Envoy ask and obey.
"""

from extproc.envoy_config.bootstrap import bootstrap
from extproc.envoy_config.options import Exchange, Options, OptionsError, RouterTls
from extproc.envoy_config.render import RenderError, render
from extproc.envoy_config.validate import InvalidError, find_envoy, validate

__all__ = [
    "Exchange",
    "InvalidError",
    "Options",
    "OptionsError",
    "RenderError",
    "RouterTls",
    "bootstrap",
    "find_envoy",
    "render",
    "validate",
]
