"""What lock files and SBOMs pin: a reader for each format. They read text, and nothing of it is installed or run."""
