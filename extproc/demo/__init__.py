"""`extproc demo`: real traffic through a real Envoy and the router to simulated engines, once per strategy.

`traffic` makes the requests, `stack` runs the processes, `load` sends and times, `experiment` puts them
together, `report` writes what came out.
"""
