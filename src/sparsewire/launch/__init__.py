"""Ranks as processes on this machine: over TCP or MPI, behind emulated links or not."""
