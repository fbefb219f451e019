"""Load generation and comparison of runs."""
