"""Arguments and commands: what a user types, and what they see."""
