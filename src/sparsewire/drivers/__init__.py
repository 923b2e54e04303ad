"""Drivers run scripts: the only place with I/O."""
