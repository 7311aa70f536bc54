"""What a node gives away and what that costs: private random numbers, noise, compression, policies, accountants.

Sums that hide what is added stand in `secure`.
"""
