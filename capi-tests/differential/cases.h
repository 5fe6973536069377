// The cases of the conformance kit, as the differential fuzzer uses them. The kit is in C; what
// loads libraries, catches exceptions and writes programs is in C++.
#ifndef NVTE_DIFFERENTIAL_CASES_H
#define NVTE_DIFFERENTIAL_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MOST_CHOICES = 4096, MOST_BUFFERS = 24 };

// A size or an option that was chosen when a case was made.
typedef struct Choice {
  size_t least, most, value;
} Choice;

// What a case is made from. The first `num_choices` choices are those that are given; what a run of
// the generator has chosen replaces them.
typedef struct Recipe {
  const char *op, *variant;  // "quantize", "quantize.gelu"
  uint64_t seed, index;
  size_t num_choices;
  Choice choices[MOST_CHOICES];
} Recipe;

// How near outputs have to be, to what is computed in double and to each other, as NVTEXImplInfo
// says it.
typedef struct Nearness {
  uint32_t numerics;
  float rtol, atol;
  bool same_bits;  // of the two outputs
} Nearness;

typedef struct Case Case;
typedef struct CaseRun CaseRun;

// Null if the kit has no cases of the variant.
Case *case_make(Recipe *recipe);
void case_free(Case *c);
const char *case_text(const Case *c);
size_t case_bytes(const Case *c);

// A run of a case in the memory of the current library: first the buffers, then the calls, then
// what they have written. These may throw what a library throws.
CaseRun *run_begin(const Case *c);
void run_call(CaseRun *run);
void run_fetch(CaseRun *run);
void run_free(CaseRun *run);
// The status of the calls, and the text of an error.
int run_status(const CaseRun *run, const char **text);

typedef struct RunBuffer {
  const char *name;
  const unsigned char *image, *base;
  size_t bytes, lead, element;  // `lead` bytes are in front of it, guards included
  bool output;
} RunBuffer;

size_t run_buffers(const CaseRun *run, RunBuffer buffers[MOST_BUFFERS]);
const unsigned char *run_result(const CaseRun *run, size_t buffer);

// What is wrong about the second run if the first is right; empty if nothing is. The largest error
// over what is allowed goes to `worst`. Says at which element of which buffer.
void run_compare(const CaseRun *first, const CaseRun *second, const Nearness *near, char *text,
                 size_t room, size_t *buffer, size_t *element, double *worst);

#ifdef __cplusplus
}
#endif

#endif  // NVTE_DIFFERENTIAL_CASES_H
