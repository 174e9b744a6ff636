"""How mirrorq grows with what is asked of it: `python -m scale`, from `benches/`."""
