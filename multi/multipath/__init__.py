"""Decisions about the paths of one connection that has several: pure, whatever engine sends the packets."""
