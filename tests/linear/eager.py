"""Proximal gradient descent that postpones nothing, with which weights and SGD are compared."""

import numpy as np


class Eager:
    """Changes every weight in every step, by the formulas of a textbook."""

    def __init__(self, start, l1=0.0, l2=0.0, momentum=0.0, average=False):
        self.w, self.v, self.history = start.astype(np.float64), np.zeros(start.shape), []
        self.l1, self.l2, self.momentum, self.average = l1, l2, momentum, average

    def step(self, gradient, length):
        self.v = self.momentum * self.v + gradient
        moved = self.w - length * self.v
        shrunk = np.sign(moved) * np.maximum(0.0, abs(moved) - length * self.l1)
        self.w = shrunk / (1 + length * self.l2 / (1 - self.momentum))
        self.history.append(self.w)

    def result(self):
        return np.mean(self.history, axis=0) if self.average and self.history else self.w
