"""Secure sums: keys, masks in a ring, shares for nodes that drop out, and both halves of the protocol."""
