"""Names of the dynamic symbols of a library, for `doctor`."""

import struct

DYNAMIC_SYMBOLS = 11
UNDEFINED = 0
WEAK = 2


def undefined_symbols(path):
    """The symbols that a library needs from others, but for those that may be missing."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no library of a 64-bit little-endian machine")
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    # Name, type, flags, address, offset, size, link, info, alignment, entry size.
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    names = []
    for section in sections:
        if section[1] != DYNAMIC_SYMBOLS:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], section[9]):
            name, info, _, index = struct.unpack_from("<IBBH", data, at)
            if index == UNDEFINED and name != 0 and info >> 4 != WEAK:
                start = strings + name
                names.append(data[start:data.index(b"\0", start)].decode())
    return names
