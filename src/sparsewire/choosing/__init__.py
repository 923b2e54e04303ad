"""Which algorithm a call takes: predicted times, the figures they come from, and how those are measured."""
