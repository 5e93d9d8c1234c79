#include "collectives/experts/table.h"

#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/per_thread.h"
#include "collectives/experts/image.h"
#include "collectives/experts/member.h"
#include "collectives/experts/taken.h"

namespace towline::collectives::experts {
namespace {

template <Kernel kernel>
void model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  run_kernel<kernel>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

#define TOWLINE_EXPERT_NAME(name, kernel) "towline_experts_" #name,
#define TOWLINE_EXPERT_MODEL(name, kernel) model<Kernel::kernel>,
constexpr const char* kNames[] = {TOWLINE_EXPERT_KERNELS(TOWLINE_EXPERT_NAME)};
constexpr cuda::KernelModel kModels[] = {TOWLINE_EXPERT_KERNELS(TOWLINE_EXPERT_MODEL)};

thread_local constinit ThreadText last_error;

template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    body();
    return TOWLINE_OK;
  } catch (const core::Error& error) {
    last_error.set(error.message());
    return static_cast<int32_t>(error.code());
  } catch (const std::bad_alloc&) {
    last_error.set("experts: out of memory");
    return TOWLINE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error.set(error.what());
    return TOWLINE_INTERNAL;
  }
}

Member& member_of(towline_experts* handle) { return *reinterpret_cast<Member*>(handle); }

const char* error() { return last_error.c_str(); }
uint64_t bytes_for(uint32_t capacity, uint32_t local, uint32_t max_tokens, uint32_t hidden) {
  return Member::bytes_for(capacity, local, max_tokens, hidden);
}
void close(towline_experts* handle) { delete &member_of(handle); }
int32_t describe(towline_experts* handle, uint8_t* to, size_t* bytes) {
  return guarded([&] {
    const std::vector<uint8_t> description = member_of(handle).describe();
    const size_t room = *bytes;
    *bytes = description.size();
    if (room < description.size())
      fail(Status::kInvalidArgument, "experts: a description needs {} bytes, not {}", description.size(),
           room);
    std::memcpy(to, description.data(), description.size());
  });
}
int32_t connect(towline_experts* handle, uint32_t rank, const uint8_t* description, size_t bytes,
                uint64_t timeout_ns) {
  return guarded([&] { member_of(handle).connect(rank, {description, bytes}, timeout_ns); });
}
int32_t open_to_hosts(towline_experts* handle) {
  return guarded([&] { member_of(handle).open_to_hosts(); });
}
int32_t disconnect(towline_experts* handle, uint32_t rank) {
  return guarded([&] { member_of(handle).disconnect(rank); });
}
int32_t issue(towline_experts* handle, towline_experts_call* call, void* stream) {
  return guarded([&] {
    towline_experts_call mine = taken(call, TOWLINE_EXPERTS_CALL_MINIMUM);
    member_of(handle).issue(mine, stream);
    call->ticket = mine.ticket;
  });
}
int32_t results(towline_experts* handle, uint32_t max_tokens, uint32_t hidden, void** address) {
  return guarded([&] { *address = reinterpret_cast<void*>(member_of(handle).results(max_tokens, hidden)); });
}
int32_t memory(towline_experts* handle, void** address, uint64_t* bytes) {
  return guarded([&] {
    *address = reinterpret_cast<void*>(member_of(handle).memory());
    *bytes = member_of(handle).bytes();
  });
}

int32_t batch(towline_experts* handle, towline_experts_batch* given, void* stream) {
  return guarded([&] {
    auto call = taken(given, TOWLINE_EXPERTS_BATCH_MINIMUM);
    member_of(handle).batch(call, stream);
    given->received = call.received;
    given->max_tokens = call.max_tokens;
  });
}

towline_experts_table_v1 table_with(int32_t (*open)(const towline_experts_options*, towline_experts**)) {
  towline_experts_table_v1 made = {};
  made.struct_size = sizeof made;
  made.error = error;
  made.bytes_for = bytes_for;
  made.open = open;
  made.close = close;
  made.describe = describe;
  made.connect = connect;
  made.disconnect = disconnect;
  made.issue = issue;
  made.results = results;
  made.memory = memory;
  made.status_name = [](int32_t status) { return status_name(static_cast<Status>(status)); };
  made.batch = batch;
  made.open_to_hosts = open_to_hosts;
  return made;
}

int32_t open_on(cuda::KernelDevice& (*device)(), const towline_experts_options* options,
                towline_experts** handle) {
  return guarded([&] {
    const auto mine = taken(options, TOWLINE_EXPERTS_OPTIONS_MINIMUM);
    cuda::KernelDevice& found = device();
    found.start();
    const cuda::KernelSet kernels{kernel_image(), kNames, kModels, sizeof(Job), kThreads, false};
    *handle = reinterpret_cast<towline_experts*>(new Member(found, kernels, mine));
  });
}

cuda::KernelDevice& (*other_device)() = nullptr;

}  // namespace

const towline_experts_table_v1& nvidia_table() {
  static const towline_experts_table_v1 table =
      table_with([](const towline_experts_options* options, towline_experts** handle) {
        return open_on(cuda::nvidia_kernel_device, options, handle);
      });
  return table;
}

const towline_experts_table_v1& table_over(cuda::KernelDevice& (*device)()) {
  static const towline_experts_table_v1 table = [&] {
    other_device = device;
    return table_with([](const towline_experts_options* options, towline_experts** handle) {
      return open_on(other_device, options, handle);
    });
  }();
  return table;
}

}  // namespace towline::collectives::experts
