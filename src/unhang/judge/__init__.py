"""What an installation's files contain, and the verdicts that follow."""
