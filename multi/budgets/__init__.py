"""Data budgets: when a period begins, and what has been used of it, for all programs of a user."""
