"""Jobs of several ranks on a CPU: real gloo ranks, and schedules that are recorded and played."""
