"""Interactive page with linked pictures of scan and frame, and a virtual detector."""
