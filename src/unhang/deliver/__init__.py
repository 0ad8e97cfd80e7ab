"""Wheels and overlays: the rewritten modules, for installations that unhang does not write to."""
