"""The transfer engine: ranges of many files at once from a source into a directory, hashed on the way.

`engine.py` runs the connections. What it decides by is pure and apart: `ranges.py` says what to fetch,
`pace.py` how fast, when a connection is stalled and when to try again, `journal.py` what a resume may
build on.
"""
