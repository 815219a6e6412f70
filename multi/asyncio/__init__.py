"""Sessions on an event loop: client, server, reader and writer, and the driver that pumps the protocol.

The only layer that knows both the protocol, which decides, and the transports and networks, which do.
"""
