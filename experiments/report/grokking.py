"""Of study 11, grokking: the page."""
