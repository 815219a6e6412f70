"""Schedulers over a grid of pairs of unequal paths."""
