"""Coverage-guided fuzzing of what reads a peer's bytes: `python -m fuzz`; see docs/testing.md."""
