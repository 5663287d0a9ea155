"""Replay: the routing code that serves, over a recorded trace and simulated engines, in virtual time.

Data passes through `traces` (a file becomes arrivals), `worth` (is there anything to gain), `run` (arrivals
through router replicas to engines), `figures` (what came of it) and `report` (as a table, JSON or a page).
A `policy` is what a replica routes by: ours are the strategies of `extproc.routing` themselves, those of
other routers are written anew from their description in `peers`.
"""
