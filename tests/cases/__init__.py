"""Cases as data: `python -m tests.cases DIR` runs a folder of them through the product's public functions."""
