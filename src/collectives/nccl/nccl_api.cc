#include "collectives/nccl/nccl_api.h"

#include <fmt/format.h>

#include "base/error.h"

namespace towline::collectives::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";

DynamicLibrary load(const std::string& file) {
  try {
    // A process that has torch has its NCCL under this name already.
    return DynamicLibrary(file.empty() ? kName : file);
  } catch (const Error& error) {
    fail(Status::kNotFound,
         "nccl: {}; import torch first, install NCCL, or name its library in the setting "
         "collectives.nccl_library",
         error.message());
  }
}

}  // namespace

Api::Api(const std::string& file) : library(load(file)) {
  library.keep_loaded();  // it leaves threads behind
  const auto find = [this](auto& function, const char* name) {
    function = library.symbol<std::remove_reference_t<decltype(function)>>(name);
  };
  find(get_version, "ncclGetVersion");
  if (get_version(&version) != kSuccess || version < kOldest)
    fail(Status::kUnsupported, "nccl: {} is NCCL {}.{}; 2.14 or later is needed", library.path(),
         version / (version < 10000 ? 1000 : 10000), version / 100 % (version < 10000 ? 10 : 100));
  find(get_error_string, "ncclGetErrorString");
  find(get_last_error, "ncclGetLastError");
  find(get_unique_id, "ncclGetUniqueId");
  find(init, "ncclCommInitRankConfig");
  find(destroy, "ncclCommDestroy");
  find(abort, "ncclCommAbort");
  find(get_async_error, "ncclCommGetAsyncError");
  find(group_start, "ncclGroupStart");
  find(group_end, "ncclGroupEnd");
  find(make_premul_sum, "ncclRedOpCreatePreMulSum");
  find(free_reduction, "ncclRedOpDestroy");
  find(all_reduce, "ncclAllReduce");
  find(reduce, "ncclReduce");
  find(broadcast, "ncclBroadcast");
  find(all_gather, "ncclAllGather");
  find(reduce_scatter, "ncclReduceScatter");
  find(send, "ncclSend");
  find(recv, "ncclRecv");
}

std::string Api::text(Result code, Comm comm) const {
  const char* const name = get_error_string(code);
  const char* const last = get_last_error(comm);
  std::string made = name != nullptr ? name : fmt::format("NCCL error {}", code);
  if (last != nullptr && *last != 0) made += fmt::format(" ({})", last);
  return made;
}

}  // namespace towline::collectives::nccl
