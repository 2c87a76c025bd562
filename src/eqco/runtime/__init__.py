"""The machine, not the learning: errors, records of results, what ran where."""
