"""The property-based suite: what is drawn, and what must hold for every draw."""
