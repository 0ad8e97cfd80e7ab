"""Wheels and overlays: rewritten modules for installations that unhang does not write to."""
