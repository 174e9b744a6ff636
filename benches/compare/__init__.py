"""mirrorq beside what users would pick instead: `make compare`."""
