"""From a hung job's dumps, stacks and logs to the fix that cures it."""
