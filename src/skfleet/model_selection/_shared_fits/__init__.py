"""Fits that contain others: what families there are, and how their fits come out of one."""
