"""One server in several processes: a parent that binds and supervises, and workers that serve."""
