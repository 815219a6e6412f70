"""What everyday use costs beside asyncio's own streams: small messages, many clients, short streams, the import."""
