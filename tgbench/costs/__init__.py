"""What a call takes: measured, interpolated or modelled."""
