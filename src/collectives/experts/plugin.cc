// The exchange of experts' tokens as a library.
#include "collectives/experts/table.h"
#include "towline/export.h"

extern "C" TOWLINE_API const towline_experts_table_v1* towline_experts_v1() {
  return &towline::collectives::experts::nvidia_table();
}
