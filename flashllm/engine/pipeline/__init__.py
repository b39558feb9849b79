"""One model over several processes or machines: each has some of its layers in memory.

The first stage has the embedding and decides everything, the last one has the head; `torch`'s gloo
carries hidden states between them. Not for several copies of a model: that is
`flashllm.batch.data_parallel`.
"""
