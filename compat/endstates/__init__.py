"""Runs each fix's function, untouched and rewritten, in every configuration that it can tell apart.

Runs from a checkout; the wheel does not carry it.
"""
