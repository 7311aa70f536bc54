"""Server halves of the methods (and the node tasks that only they use): one method a file."""
