"""What a trace of a session tells, in words, as JSON and as a picture. `multi.asyncio.tracing` writes them."""
