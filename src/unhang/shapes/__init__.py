"""What a function's shape is, and all shapes on record."""
