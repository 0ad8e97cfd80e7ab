"""What a job is started with, and which fixes that concerns: whom they strike, and whom they must not touch."""
