"""What is to be written, planned whole in memory."""
