"""Message exchange with nodes: nodes and workers, frames, payload declarations, rounds, lineages.

The work of the nodes is in `learning` and `search`; the folder `engines` holds the transports to the nodes.
"""
