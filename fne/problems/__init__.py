"""Problems of black-box optimisation: search spaces, test functions, and the user's own functions or commands.

Methods that solve them stand in `search` and `strategies`.
"""
