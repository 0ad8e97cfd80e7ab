"""The new bytes of every file, planned in memory."""
