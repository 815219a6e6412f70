"""Applications of the library that are not needed to understand or use a session.

The simulator, the testbed, the demos, the measurement behind `multi bench`, the file service and the development CA.
"""
