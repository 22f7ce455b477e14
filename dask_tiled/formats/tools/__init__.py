"""What several formats need: tables of header fields, records, series of files, text, codecs."""
