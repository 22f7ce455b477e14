"""What operating systems provide: each name that some lack is looked up here, once, at import.

No other package uses these names, or asks which system it runs on.
"""
