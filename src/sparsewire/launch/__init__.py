"""Ranks as processes on this machine: over TCP or MPI, with or without emulated links."""
