"""The commands of `multi`, a module each: its arguments, and the call that does it. A new module is a new command.

Each has `add_parser(commands)`. What does the work is imported when the command runs, so that `multi --help` does not
wait for cryptography and QUIC.
"""
