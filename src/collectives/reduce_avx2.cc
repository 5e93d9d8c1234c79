// Compiled with the flags of avx2: see src/CMakeLists.txt. Nothing here runs on processors without it.
#if defined(__x86_64__)
#define TOWLINE_KERNELS avx2_kernel
#include "collectives/reduce_kernels.h"
#endif
