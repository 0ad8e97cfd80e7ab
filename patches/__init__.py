"""What each fix is: one folder a fix, with its manifest and the page that `unhang explain` prints."""
