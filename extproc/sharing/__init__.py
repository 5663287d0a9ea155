"""Shared picks: what one replica of the router learns, the others hear within a second or two.

Where several replicas route to the same engines, each sees only its own part of the traffic. It knows neither
which prompts the others sent where, nor how much they sent there since the engines last spoke of their load.
So each tells the others its picks: block keys and endpoint, in one batch a second, straight from process to
process. Losing some of them, or all, costs tail latency and nothing else: every replica can pick alone.

The data flows down this list; only the last module knows them all.

- `outbox`: picks wait here for the next batch. Filling it is all that a request notices of sharing.
- `batches`: picks to messages and back, pure. `picks_pb2` is generated from picks.proto by `make proto`.
- `peer`: one other replica: the connection, and what waits to be told to it.
- `peers`: the others that there are, by name; `names` looks the names up.
- `listener`: the port that the others call.
- `inbox`: what is heard is checked and handed to the pools.
- `knowledge`: what a replica knows, for one that has just started.
- `replica`: puts these together.

Nothing here may stop routing or wait on its path. What fails is counted and logged, and tried again.
"""
