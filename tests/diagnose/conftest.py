"""The fixtures of this room."""

from support.live_ranks import started as started
