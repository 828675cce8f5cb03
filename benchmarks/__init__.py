"""What the project measures of itself: `python -m benchmarks list`, and docs/performance.md."""
