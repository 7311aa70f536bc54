"""How work reaches nodes and comes back: nodes and workers, frames, payload declarations, rounds, lineages.

The work itself stands in `learning` and `search`; `engines` reaches nodes on one machine or on many.
"""
