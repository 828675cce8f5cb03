"""Targets in Python: each module has `one_input(data)`, which raises for a defect and else returns.

What it calls may raise the error that its documentation names, for whatever bytes, and nothing
else. `python -m fuzz` runs them under atheris; the tests run them over the corpus without it.
"""
