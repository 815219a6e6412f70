"""The file service behind `multi serve`, `get` and `put`: its messages, both ends, and the view of a copy."""
