"""Where a pool's endpoints come from: a fixed list, or a watched file. Each source is one module."""
