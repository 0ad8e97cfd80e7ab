"""What people and programs read: reports, messages, and the compat matrix as text and as a picture."""
