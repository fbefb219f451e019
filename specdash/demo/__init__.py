"""The embedded simulated GPU host, for trying specdash out and for tests."""
