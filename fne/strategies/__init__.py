"""Server halves of the methods, one method per file, with the node tasks that only this method uses.

Code that two methods share is in `learning` or `search`; a strategy knows neither engines nor other strategies.
"""
