"""Which upstream version needs which fix: generated data, and the sweep that generates it."""
