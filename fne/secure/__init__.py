"""Secure sums: both halves of the protocol by which a server learns a sum and no summand.

Noise and privacy accounts are in `privacy`.
"""
