"""The simulated engine: behaves like SGLang, knows nothing of specdash. Standard library only.

Copied into the demo host's venv as `sglang.simulated`; specdash reaches it like any server. No code of
specdash outside `specdash.demo` and its tests imports it.
"""
