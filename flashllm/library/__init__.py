"""Models on this machine: converted ones, checkpoints that could be converted, conversions.

Goals: everything read is untrusted, so a broken directory becomes a line with its problem, never
the end of the list; a search takes bounded time; only a conversion writes. No torch, no textual.
`library.Library` finds, `conversion_job.Conversions` converts.
"""
