"""Which connections should exist: candidates, the race between them, slots, and the manager that fills them. Pure."""
