"""Policies of other routers, each written anew from how it is described, with its defaults and its source.

They know what the router that they stand for knows: see `extproc.replay.policy`. Where that router keys by
text that a trace does not have, the nearest block key stands for it.
"""
