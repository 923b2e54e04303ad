"""Vectors as bytes: index codes, low-precision values, rounding, and frames on the wire."""
