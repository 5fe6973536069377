#ifndef TRANSFORMER_ENGINE_COMM_WINDOW_H
#define TRANSFORMER_ENGINE_COMM_WINDOW_H

#include <stdint.h>

/*! NCCL's opaque window type: what ncclWindow_t points to. */
struct ncclWindow_vidmem;

/*! Symmetric memory in place of a tensor's own pointers; all zero means "use the pointers".
 *  Offsets are bytes into the window. The scale pair serves scale_inv of block-scaled payloads. */
typedef struct NVTECommWindow {
  struct ncclWindow_vidmem *window;
  uint64_t offset;
  struct ncclWindow_vidmem *scale_window;
  uint64_t scale_offset;
} NVTECommWindow;

#endif /* TRANSFORMER_ENGINE_COMM_WINDOW_H */
