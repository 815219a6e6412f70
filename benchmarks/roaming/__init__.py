"""Sessions whose networks come, go and die."""
