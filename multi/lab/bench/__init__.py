"""The measurement behind `multi bench`: what its two ends say to each other, and the run."""
