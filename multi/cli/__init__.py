"""The command line: `multi`, a module per command, and what they share.

All arguments are in `parser`: a command's own module is imported when it runs, so that help is fast.
"""
