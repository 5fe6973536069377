// Stands in for libcudart: what the library forwards to it.
extern "C" int cudaRuntimeGetVersion(int *version) {
  *version = 13099;
  return 0;
}
