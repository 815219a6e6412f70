"""Sessions for libraries that open connections themselves. Each module is imported by its name only."""
