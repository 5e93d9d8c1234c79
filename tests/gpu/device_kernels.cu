// An application's kernels over a window.
#include "device_kernels.h"

extern "C" __global__ void towline_test_go_round(const __grid_constant__ towline::gpu_test::DeviceTry what) {
  towline::gpu_test::go_round(what);
}
extern "C" __global__ void towline_test_wait_in_vain(
    const __grid_constant__ towline::gpu_test::DeviceTry what) {
  towline::gpu_test::wait_in_vain(what);
}
