"""The systems that `benchmarks.messaging` measures, ours among them, each in processes of its own.

A module offers `server(address, options)`, a context manager that gives the address it listens on,
and `client(address, options)`, one that gives what is measured: `request(payload)`, which returns
the echo, or `transfer()`, which moves bytes one way and returns how many.  `address` is the path of
a socket that may be made.  The modules with ``BLOCKING = True`` do all this without an event loop.

`pair` starts such processes and asks them to measure; `__main__` and `loops` are what runs there.
"""
