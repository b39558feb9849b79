"""The engine in a process of its own: messages, channel, worker and client.

Computes nothing itself.
"""
