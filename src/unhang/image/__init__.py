"""A container image as a folder that the other rooms can read: only the files that they read, and nothing executed."""
