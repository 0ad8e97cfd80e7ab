"""What stands in an installation's files, and what that means: the verdicts."""
