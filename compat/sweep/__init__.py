"""Generates and checks the compat matrix. Runs from a checkout; the wheel does not carry it."""
