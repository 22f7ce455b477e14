"""Sample files that grow as a detector would write them."""

# Formats that append frames, and fill one file after the other.
APPENDED = [
    "raw", "raw with gaps", "raw series", "npy C", "mib u16", "mib 12 bit quad", "mib hdr",
    "mib series", "mrc i2", "mrc c8", "mrc movie", "tvips 1", "tvips series",
    "frms6", "frms6 binned", "seq 4", "seq 5", "empad scan", "empad series", "blo",
]  # fmt: skip


class Acquisition:
    """Files that grow byte by byte, in order."""

    def __init__(self, members):
        self.content = {path: path.read_bytes() for path in members}
        self.size = sum(map(len, self.content.values()))
        self.written = self.size
        self.rewind()

    def rewind(self):
        for path in self.content:
            path.unlink()
        self.written = 0

    def write_to(self, stop):
        """Append bytes until all files together have `stop`."""
        at = 0
        for path, content in self.content.items():
            first, last = max(0, self.written - at), min(len(content), stop - at)
            if last > first:
                with path.open("ab") as file:
                    file.write(content[first:last])
            at += len(content)
        self.written = max(stop, self.written)


def growing(sample):
    """Return the options that open a sample while it grows, and its acquisition."""
    path = sample.options["path"]
    if isinstance(path, list):
        path = path[0].with_name("scan*.raw")
    pixels = [member for member in sample.members if not is_header(member)]
    return {**sample.options, "path": path, "follow": True}, Acquisition(pixels)


def is_header(path):
    return path.suffix in {".hdr", ".xml", ".txt", ".csv", ".gtg"}
