"""A search in a process of its own: what is sent, who serves there, who asks here."""
