// Uses only instructions that every processor of the architecture has (on aarch64: NEON).
#define TOWLINE_KERNELS baseline_kernel
#include "collectives/reduce_kernels.h"
