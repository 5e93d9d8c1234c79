#include "base/os/dynamic_library.h"
#include "gpu/experts_suite.h"

namespace towline::gpu_test::experts {

const towline_experts_table_v1& table() {
  static DynamicLibrary library{TOWLINE_EXPERTS_PLUGIN};
  return *library.symbol<towline_experts_v1_fn>("towline_experts_v1")();
}

}  // namespace towline::gpu_test::experts
