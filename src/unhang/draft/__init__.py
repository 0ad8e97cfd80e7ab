"""A fix begun from a diff: what the diff changes in a release, and the files of a fix that does the same."""
