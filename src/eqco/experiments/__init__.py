"""One file per figure or table, named after it; the published numbers with their source."""
