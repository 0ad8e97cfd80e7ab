"""Which upstream version needs which fix: generated data, and the radar that compares it with the package index.

``sweep/``, which generates the data, runs from a checkout; the wheel does not carry it.
"""
