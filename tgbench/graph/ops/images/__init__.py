"""Ops on images: windows that slide, pools, convolutions, other sizes."""
