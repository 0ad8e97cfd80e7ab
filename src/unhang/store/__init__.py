"""Write planned bytes to disk, and restore the original ones."""
