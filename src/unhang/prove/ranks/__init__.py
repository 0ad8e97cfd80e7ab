"""Jobs of several ranks on a CPU: real gloo ranks, and what they need."""
