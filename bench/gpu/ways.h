// Pushed by the GPU that has the bytes, or pulled by the one that gets them: which is better, and with how
// many thread blocks. Plain kernels over one list, taking turns.
#pragma once

namespace bench::gpu {

// Prints a table: GPU 0 to the last one, and host memory to and from the last by either. Needs two GPUs.
void measure_ways(int rounds);

}  // namespace bench::gpu
