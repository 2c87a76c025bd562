"""Records become tables and plots; nothing here computes a result."""
