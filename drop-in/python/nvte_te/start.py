"""Runs at the start of each interpreter, by the line in nvte_te.pth: chooses the core of this process."""

import os

# The word in this file is the core that the environment uses: "te" or "nvte". The wheel brings the file
# along, so that uninstalling it leaves nothing behind.
SWITCH = os.path.join(os.path.dirname(__file__), "switch.txt")


def switch():
    with open(SWITCH) as file:
        return file.read().strip()


def wish():
    """The core that this process shall use: what NVTE_CORE says, else what the environment is set to."""
    return os.environ.get("NVTE_CORE") or switch()


if wish() != "te":
    from nvte_te import hook

    hook.install()
