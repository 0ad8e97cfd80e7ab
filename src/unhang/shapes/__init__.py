"""What a function's shape is, and which shapes are on record."""
