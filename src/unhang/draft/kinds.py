"""The harnesses of a drafted proof. Apart, for the command line names them whatever the command."""

RANKS, SCHEDULE, VALUES = HARNESSES = ("ranks", "schedule", "values")
"""Ranks that wait, recorded ranks that would wait, ranks whose values are wrong."""
