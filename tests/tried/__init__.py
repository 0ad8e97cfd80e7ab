"""Patches of others, turned into packs: what became a fix, and what the original does in the same three cases.

Nothing of theirs is kept here: the patches come from clones, the upstreams from the index.
"""
