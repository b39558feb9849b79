"""Models on this machine: those that are converted, checkpoints that could be, conversions.

Goals: everything read is untrusted, so one broken directory is a line with its problem, never the
end of the list; looking takes bounded time; nothing but a conversion writes. No torch, no textual.
`library.Library` finds, `conversion_job.Conversions` converts.
"""
