"""The tests. Shared helpers are imported by their full name, `from tests.support import ...`."""
