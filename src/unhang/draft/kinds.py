"""How a drafted scene shows the defect. A module of its own, because the command line names these for every command."""

RANKS, VALUES = HARNESSES = ("ranks", "values")
"""Ranks that wait, ranks whose values are wrong."""
