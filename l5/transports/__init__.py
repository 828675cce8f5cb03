"""The transports of l5, one module each; every one is found through the entry points.

A module whose name begins with an underscore is shared by the others; no transport imports
another.
"""
