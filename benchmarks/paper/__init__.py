"""The paper's evaluation, done again."""
