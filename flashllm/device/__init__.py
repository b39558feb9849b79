"""Memory and products of a device that torch drives: a GPU, or torch on the CPU in its stead.

Not here: what lies on the device (`planning.device_plan`), and who asks for products. Nothing
but this room knows that rows may be elsewhere than in DRAM.
"""
