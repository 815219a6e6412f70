"""The session protocol: which bytes go where, who may join, what is lost and what is over. Pure: no I/O, no clock.

`session.SessionCore` is the way in: inputs with `now=`, one ordered list of effects, and when to come back. What only
wants to know asks its parts: `connections`, `streams`, `sender`, `receiver`.
"""
