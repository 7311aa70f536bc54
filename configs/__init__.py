"""Ready-made configurations: `fne train NAME` finds them."""
