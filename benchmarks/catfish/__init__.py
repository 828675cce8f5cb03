"""The experiments of the paper on Catfish: ``python -m benchmarks catfish-figN --json F --png F``.

Each figure has points that were measured here, with processes and real transports, and points that
the simulator computed (`benchmarks.simulator`); rows and plots tell the ones from the others.
"""
