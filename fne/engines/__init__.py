"""Engines: where the nodes are and how a request reaches them."""
