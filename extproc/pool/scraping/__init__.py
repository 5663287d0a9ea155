"""Engines' own metrics: read over HTTP, and turned into reports for their pool.

`page` reads what an engine answers, `cadence` says when each is asked; both are without IO. `credentials`
holds what engines want to see, `scraper` asks, and `metrics` is what the router says of it all.
"""
