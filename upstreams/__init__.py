"""What an upstream is: one file of data each, which `compat/schemas/upstream.json` describes."""
