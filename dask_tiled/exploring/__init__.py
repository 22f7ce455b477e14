"""Two linked pictures of an array in a page: the scan and the frame, with a detector to drag."""
