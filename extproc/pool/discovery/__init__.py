"""Where a pool's endpoints come from, unless they stand in the configuration. Each source is one module."""
