"""The native core again, in numpy: what tests compare it with, and what runs without it."""
