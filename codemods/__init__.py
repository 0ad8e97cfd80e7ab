"""How each fix rewrites source: one module for each fix, and a small shared base."""
