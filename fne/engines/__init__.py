"""Engines: the location of the nodes, and the transport of requests to them.

The processing of answers is the same for every engine and is in `federation`.
"""
