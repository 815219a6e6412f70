"""The command line: `multi`, a module per command with its arguments, and what they share."""
