"""The session protocol: which bytes go where, who may join, what is lost and what is over. Pure: no I/O, no clock.

`session.SessionCore` is the only facade: inputs with `now=`, one ordered list of effects, one timer.
"""
