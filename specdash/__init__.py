"""specdash: mission control for speculative decoding on SGLang hosts."""

__version__ = "0.1.0"
