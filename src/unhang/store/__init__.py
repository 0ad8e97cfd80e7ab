"""How planned bytes get to disk, and back."""
