"""The cache on a disk of a node: reserve, fetch, verify, publish, adopt, evict, remove.

`layout.py` says where everything lies and which states a cache goes through. Nothing here knows where bytes
come from; that is `cacheprep/sources/`, and `cacheprep/filling.py` brings the two together.
"""
