"""Screens and widgets. Workers post messages; handlers own state."""
