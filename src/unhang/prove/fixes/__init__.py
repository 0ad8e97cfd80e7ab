"""A module or package for each fix: the cases that show its hang, and how to run them."""
