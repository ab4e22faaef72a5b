"""A host in C that plays NCCL for the profiler plugin, and a reader of its ring."""
