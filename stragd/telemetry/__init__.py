"""What drivers, sysfs and /proc say about GPUs, NICs and the ranks' processes. None decides."""
