"""A judge of upstream's functions and of our rewrites that shares no code with the end states.

It walks a function's syntax tree with an interpreter of its own: upstream's code is never executed.
"""
