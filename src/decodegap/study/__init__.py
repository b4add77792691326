"""Many trials with an order and a purpose: an A/B comparison, a whole matrix, here or on Ray."""
