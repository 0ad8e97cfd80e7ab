"""How each fix rewrites source: one module a fix, a small shared base."""
