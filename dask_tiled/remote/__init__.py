"""Files behind URLs: who gives their bytes, how they are asked, and what is kept of them."""
