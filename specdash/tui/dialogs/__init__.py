"""Screens that open over the main one; each is imported when first opened."""
