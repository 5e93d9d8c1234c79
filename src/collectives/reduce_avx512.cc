// Compiled with the flags of avx512: see src/CMakeLists.txt. Nothing here runs on processors without it.
#if defined(__x86_64__)
#define TOWLINE_KERNELS avx512_kernel
#include "collectives/reduce_kernels.h"
#endif
