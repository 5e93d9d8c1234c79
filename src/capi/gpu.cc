// C API: transfers in the order of a GPU's streams.
#include "towline/gpu.h"

#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

int32_t answer(const char* function, Status status) noexcept {
  return is_error(status) ? capi::answer(function, status, take_failure_text())
                          : static_cast<int32_t>(status);
}

}  // namespace

extern "C" {

int32_t towline_transfer_post_on(towline_transfer_t* transfer, void* stream) {
  if (transfer == nullptr) return capi::refuse_null(__func__, "transfer");
  return answer(__func__, reinterpret_cast<Transfer*>(transfer)->post_on(stream));
}

int32_t towline_transfer_wait_on(towline_transfer_t* transfer, void* stream) {
  if (transfer == nullptr) return capi::refuse_null(__func__, "transfer");
  return answer(__func__, reinterpret_cast<Transfer*>(transfer)->wait_on(stream));
}

int32_t towline_transfer_replays(const towline_transfer_t* transfer, towline_replays_t* replays) {
  return capi::guard(__func__, [&] {
    capi::need(transfer, "transfer");
    capi::need(replays, "replays");
    if (replays->struct_size < sizeof(size_t) || replays->struct_size > 4096)
      fail(Status::kInvalidArgument, "replays.struct_size is {}; set it to sizeof the struct",
           replays->struct_size);
    const towline_capture_runs runs = reinterpret_cast<const Transfer*>(transfer)->captured_runs();
    const towline_replays_t whole = {replays->struct_size, runs.begun,  runs.ended,
                                     runs.refused,         runs.status, 0};
    std::memcpy(replays, &whole, std::min(replays->struct_size, sizeof whole));
    return Status::kOk;
  });
}

int32_t towline_transfer_view(towline_transfer_t* transfer, uint64_t* from, uint64_t* to, size_t count) {
  if (transfer == nullptr) return capi::refuse_null(__func__, "transfer");
  if (from == nullptr) return capi::refuse_null(__func__, "from");
  if (to == nullptr) return capi::refuse_null(__func__, "to");
  return answer(__func__, reinterpret_cast<Transfer*>(transfer)->view(from, to, count));
}

}  // extern "C"
