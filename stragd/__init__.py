"""stragd finds the slow rank of a live distributed training job from outside the job."""

__version__ = "0.1.0"
