"""A FAKE of SGLang's router, for tests only: this machine has no sglang-router (a Rust wheel)."""
