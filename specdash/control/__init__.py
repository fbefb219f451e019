"""What an operator does, each a typed plan that can be shown before it runs."""
