"""stragctl: asks a running stragd over its control socket, and shows the answer."""
