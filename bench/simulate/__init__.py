"""Placement policies side by side, the real scheduler among them, in a discrete-event simulation of a fleet."""
