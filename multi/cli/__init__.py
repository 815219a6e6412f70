"""The command line: `multi`, a module per command in `commands`, and what they share."""
