"""Everything that leaves the daemon: control socket, Prometheus, journal."""
