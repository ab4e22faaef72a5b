"""Who is this process: job, rank, container and hardware class of a process on this node."""

from stragd.discovery.identity import Identifier, Identity

__all__ = ["Identifier", "Identity"]
