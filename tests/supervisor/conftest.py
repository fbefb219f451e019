"""The run root, link and simulated engine of the control room's tests."""

from tests.control.conftest import free_port, link, root, stub

__all__ = ["free_port", "link", "root", "stub"]
