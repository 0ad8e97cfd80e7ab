"""Runs each fix's function, untouched and rewritten, in every configuration that it can tell apart.

The sweep does so for all shapes; ``unhang diff --unknown --run`` for those of an environment that nobody has verified.
"""
