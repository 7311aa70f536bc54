"""The server halves of the methods, one method a file, with the node tasks that only it uses.

What two methods need stands in `learning` or `search`; a strategy knows neither engines nor other strategies.
"""
