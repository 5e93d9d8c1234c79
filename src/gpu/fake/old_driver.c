// As much of a driver as it takes to find out that it is too old. DRIVER_VERSION: 11040 is CUDA 11.4.
#include <stddef.h>

__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = DRIVER_VERSION;
  return 0;
}

// Has nothing: 500 is CUDA_ERROR_NOT_FOUND.
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* name, void** function, int version,
                                                               unsigned long long flags, int* found) {
  (void)name;
  (void)version;
  (void)flags;
  *function = NULL;
  *found = 1;
  return 500;
}
