"""Windows of one job from many nodes: messages, transports, alignment, the scorer of a job.

Only rows of whole windows leave a node. Nothing here waits: queues are bounded and drop the oldest.
"""
