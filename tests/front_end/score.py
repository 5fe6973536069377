"""Scores a core under the other library's PyTorch front end: runs small programs on its public
Python API and reports what each of them computed. Run it once per core, then compare the
reports with compare.py."""

import harness

harness.without_frameworks()

import torch_attention  # noqa: E402  (importing a file of cases registers them)
import torch_modules  # noqa: E402,F401
import torch_rest  # noqa: E402,F401
from torch_common import Adapter  # noqa: E402

if __name__ == "__main__":
    harness.main(Adapter())
