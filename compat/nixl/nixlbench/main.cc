// nixlbench with the flags and the table of NIXL's program of this name, on Towline.
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bench.h"

namespace {

using namespace nixlbench;  // NOLINT: one file

void print_flags(const Flags& flags) {
  const std::string separator(70, '*');
  fmt::print("{}\nNIXLBench Configuration\n{}\n", separator, separator);
  const auto line = [](const char* what, const std::string& value) {
    fmt::print("{:<60}: {}\n", what, value);
  };
  line("Runtime (--runtime_type=[etcd])", flags.is_storage() ? "none" : flags.runtime_type);
  line("Worker type (--worker_type=[nixl,nvshmem])", flags.worker_type);
  line("Backend (--backend=[UCX,POSIX,OBJ,AZURE_BLOB,GDS,HF3FS,..])", flags.backend);
  line("Initiator seg type (--initiator_seg_type=[DRAM,VRAM])", flags.initiator_seg_type);
  line("Target seg type (--target_seg_type=[DRAM,VRAM])", flags.target_seg_type);
  line("Op type (--op_type=[READ,WRITE])", flags.op_type);
  line("Check consistency (--check_consistency=[0,1])", flags.check_consistency ? "1" : "0");
  line("Total buffer size (--total_buffer_size=N)", std::to_string(flags.total_buffer_size));
  line("Block size (--start_block_size, --max_block_size)",
       fmt::format("{} to {}", flags.start_block_size, flags.max_block_size));
  line("Batch size (--start_batch_size, --max_batch_size)",
       fmt::format("{} to {}", flags.start_batch_size, flags.max_batch_size));
  line("Num iter (--num_iter=N)", std::to_string(flags.num_iter));
  line("Warmup iter (--warmup_iter=N)", std::to_string(flags.warmup_iter));
  line("Num threads (--num_threads=N)", std::to_string(flags.num_threads));
  line("Pipeline depth (--pipeline_depth=N)", std::to_string(flags.pipeline_depth));
  for (const std::string& name : flags.without_effect)
    line(("--" + name).c_str(), "without effect on Towline");
  fmt::print("{}\n\n", separator);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Flags flags = Flags::parse({argv + 1, argv + argc});
    if (flags.help) {
      fmt::print("{}", Flags::usage());
      return EXIT_SUCCESS;
    }
    if (!flags.is_storage()) need_backend(flags);
    const std::unique_ptr<Meeting> meeting = flags.is_storage() ? nullptr : std::make_unique<Meeting>(flags);
    if (meeting == nullptr || meeting->rank() == 0) print_flags(flags);
    Bench bench(flags, meeting.get());
    return bench.run() ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nixlbench: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
