"""Jobs of several ranks on a CPU: real gloo ranks, or schedules that are recorded and played."""
