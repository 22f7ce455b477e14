"""Complete the C runtime of Wine 8, which lacks functions that NumPy and HDF5 call.

The runtime of Wine is kept as ucrtwine.dll. The new ucrtbase.dll forwards to it all functions but
those of complex numbers, from mingw-w64, and some of the floating-point environment.
"""

import re
import subprocess
from pathlib import Path

TOOLS = "x86_64-w64-mingw32-"
OF_WINE = b"Wine builtin DLL"
"""Wine replaces a library with this mark by its own one of that name."""
COMPLEX = {
    **dict.fromkeys(("cabs", "carg", "cimag", "creal"), "{real} {name}({real} _Complex x)"),
    **dict.fromkeys(
        (
            *("conj", "cproj", "cexp", "clog", "csqrt", "csin", "ccos", "ctan", "csinh", "ccosh"),
            *("ctanh", "casin", "cacos", "catan", "casinh", "cacosh", "catanh"),
        ),
        "{real} _Complex {name}({real} _Complex x)",
    ),
    "cpow": "{real} _Complex {name}({real} _Complex x, {real} _Complex y)",
}
"""Functions by name; on Windows, long double is double."""
FLOATING = {
    "feholdexcept": "int {name}(void *x) {{ OF_WINE(_clearfp)(0); return OF_WINE(fegetenv)(x); }}",
    "feupdateenv": "int {name}(void *x) {{ return OF_WINE(fesetenv)(x); }}",
    "feraiseexcept": "int {name}(int x) {{ return 0; }}",
}
HEADER = """
#include <complex.h>
#include <windows.h>
#define OF_WINE(name) ((int (*)(void *)) GetProcAddress(GetModuleHandleA("ucrtwine.dll"), #name))
"""


def exports_of(library):
    """List the names that a library exports."""
    command = [f"{TOOLS}objdump", "-p", library]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    table = done.stdout.partition("[Ordinal/Name Pointer] Table")[2]
    return re.findall(r"^\s*\[ *\d+\].*?([A-Za-z_?@$][\w?@$]*)$", table, re.MULTILINE)


def functions():
    """Yield the name and the definition of each function to add."""
    for name, head in COMPLEX.items():
        for suffix, real, called in (("", "double", ""), ("l", "double", ""), ("f", "float", "f")):
            own = head.format(real=real, name=f"own_{name}{suffix}")
            arguments = "x, y" if name == "cpow" else "x"
            yield f"{name}{suffix}", f"{own} {{ return {name}{called}({arguments}); }}"
    for name, body in FLOATING.items():
        yield name, body.format(name=f"own_{name}")


def complete(library, folder):
    """Write both libraries into a folder, given that of Wine."""
    content = bytearray(Path(library).read_bytes())
    at = content.find(OF_WINE)
    content[at : at + len(OF_WINE)] = bytes(len(OF_WINE))
    (folder / "ucrtwine.dll").write_bytes(content)
    own = dict(functions())
    lines = ['LIBRARY "ucrtbase.dll"', "EXPORTS"]
    lines += [f'"{name}" = own_{name}' for name in own]
    lines += [f'"{name}" = ucrtwine."{name}"' for name in exports_of(library) if name not in own]
    source, definitions = folder / "ucrtbase.c", folder / "ucrtbase.def"
    source.write_text(HEADER + "\n".join(own.values()) + "\n", "ascii")
    definitions.write_text("\n".join(lines) + "\n", "ascii")
    target = folder / "ucrtbase.dll"
    command = [f"{TOOLS}gcc", "-O2", "-shared", "-static-libgcc", "-o", target, source, definitions]
    subprocess.run(command, check=True)
