// The CUDA libraries of the process, opened when they are there; this file is linked to none of
// them.

#pragma once

namespace drop_in {

// A function of libcudart (or libcublasLt); null if the process has not loaded the library.
void *runtime_function(const char *name);
void *cublaslt_function(const char *name);

}  // namespace drop_in
