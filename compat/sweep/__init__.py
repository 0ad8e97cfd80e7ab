"""The code that generates and checks the compat matrix; it runs from a checkout and is not in the wheel."""
