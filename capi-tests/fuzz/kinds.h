// The arguments of a public function, as wrappers.py describes them.
#ifndef NVTE_FUZZ_KINDS_H
#define NVTE_FUZZ_KINDS_H

#include <cstddef>

#include "nvte/nvte.h"

namespace {

enum Kind {
  PLAIN,  // passed on
  INTEGER,
  FLOAT,
  BOOL,
  ENUM,
  STRING,
  SHAPE,
  TENSOR,
  GROUPED,
  QUANT_CONFIG,
  MATMUL_CONFIG,
  GROUPED_MATMUL_CONFIG,
  ATTENTION_CONFIG,
  FORWARD_PARAMS,
  BACKWARD_PARAMS,
  OBJECT,        // any other handle
  TENSORS,       // an array of tensors
  TENSOR_LISTS,  // an array of arrays of tensors
  PACK,
  HOST_ARRAY,
  DEVICE_ARRAY,
  STRUCT,
  OUT,   // a pointer to what the call returns
  TAPE,  // likewise, a tape
};

struct Field {
  Kind kind;
  const char *name;
  size_t offset, size;
};

// One argument of a call. Arrays have `element` bytes for each of `count` elements, which
// is the index of the argument that counts them (and that of the inner count), and `more` elements
// beyond.
struct Arg {
  Kind kind;
  const char *name;
  void *value;
  size_t bytes, element;
  int count, inner_count;
  size_t more;
  const Field *fields;
};

}  // namespace

#endif  // NVTE_FUZZ_KINDS_H
