"""Hooks for other packages, each in a module of its own and with an extra of its own."""
