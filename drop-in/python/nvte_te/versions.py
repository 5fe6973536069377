"""The releases of Transformer Engine that this package works with."""

from importlib import metadata

# Those that our library has been run with. The C ABI has changed between releases.
TESTED = ("2.20.2",)
# The first two bring the library, the third one the Python code.
CORES = ("transformer-engine-cu13", "transformer-engine-cu12")
DISTRIBUTIONS = CORES + ("transformer-engine", "transformer-engine-torch", "transformer-engine-jax")


def installed():
    """Version of each distribution that is there."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def core():
    """Name and version of the distribution that brings the library; None without one. Where it was built
    from source, the library is in the distribution of the Python code."""
    found = installed()
    names = [name for name in CORES + ("transformer-engine",) if name in found]
    return (names[0], found[names[0]]) if names else None


def refusal():
    """Why our library must not be used here, as a sentence; None if it may."""
    found = core()
    if found is None:
        return "Transformer Engine is not installed in this environment."
    name, version = found
    # What follows a plus sign tells builds of one release apart.
    if version.split("+")[0] not in TESTED:
        return f"nvte_te works with {name} {' or '.join(TESTED)}, but {version} is installed."
    return None
