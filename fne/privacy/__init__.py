"""Privacy of a node's answers: private random numbers, noise, compression, policies, accountants.

Sums that hide the summands are in `secure`.
"""
