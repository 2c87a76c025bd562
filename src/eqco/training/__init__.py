"""Training: schedules, optimisers, diagnostics, alarms, and the loop that uses them."""
