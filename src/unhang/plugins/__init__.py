"""Where fixes come from: the packs in effect, and the values that a user gives for them."""
