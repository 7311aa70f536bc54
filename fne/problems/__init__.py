"""Problems of black-box optimisation: search spaces, test functions, and the user's own functions or commands.

Methods that solve them are in `search` and `strategies`.
"""
