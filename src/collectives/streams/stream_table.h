// The table (towline/plugin/collective.h) of a backend that is a StreamBackend.
#pragma once

#include <functional>
#include <memory>

#include "collectives/calls/guarded.h"
#include "collectives/streams/stream_backend.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

using OpenFunction = int32_t (*)(const towline_collective_open_args*, towline_collective_backend**);

towline_collective_table_v1_t make_stream_table(OpenFunction open);

// The object behind a handle of the table.
StreamBackend& backend_of(towline_collective_backend* handle);
// The handle that the table's functions take.
towline_collective_backend* hand_out(const towline_collective_open_args& args,
                                     std::unique_ptr<StreamBackend> backend);

// A backend's tables: over NVIDIA's driver, and over another device, one for the process, for tests. Make(args, device) makes the
// backend; Complete adds to the table what it has beyond the common part.
template <std::unique_ptr<StreamBackend> (*Make)(const towline_collective_open_args&, cuda::KernelDevice&),
          void (*Complete)(towline_collective_table_v1_t&)>
class DeviceTables {
 public:
  static const towline_collective_table_v1_t& nvidia() {
    static const towline_collective_table_v1_t table = make(open_nvidia);
    return table;
  }
  static const towline_collective_table_v1_t& over(cuda::KernelDevice& (*device)()) {
    device_ = device;
    static const towline_collective_table_v1_t table = make(open_other);
    return table;
  }

 private:
  static towline_collective_table_v1_t make(OpenFunction open) {
    towline_collective_table_v1_t made = make_stream_table(open);
    Complete(made);
    return made;
  }
  static int32_t open_over(const towline_collective_open_args* args, towline_collective_backend** backend,
                           cuda::KernelDevice& (*device)()) {
    return guarded(args->host, [&] {
      *backend = hand_out(*args, Make(*args, device()));
      return Status::kOk;
    });
  }
  static int32_t open_nvidia(const towline_collective_open_args* args, towline_collective_backend** backend) {
    return open_over(args, backend, cuda::nvidia_kernel_device);
  }
  static int32_t open_other(const towline_collective_open_args* args, towline_collective_backend** backend) {
    return open_over(args, backend, device_);
  }

  static inline cuda::KernelDevice& (*device_)() = nullptr;
};

}  // namespace towline::collectives
