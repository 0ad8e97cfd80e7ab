"""How a drafted scene shows the defect. Apart, for the command line names them whatever the command."""

RANKS, VALUES = HARNESSES = ("ranks", "values")
"""Ranks that wait, ranks whose values are wrong."""
