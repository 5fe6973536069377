"""Prints what a C compiler needs for the library and the headers of the wheel: `cc app.c $(python3 -m nvte)`."""

import sys
from pathlib import Path

folder = Path(__file__).parent
if not (folder / "include").is_dir():
    sys.exit("python3 -m nvte: this package was not installed from a wheel, so it has no headers; ask pkg-config for nvte")
print(f"-I{folder}/include -L{folder}/lib -l:libnvte.so.0 -Wl,-rpath,{folder}/lib")
