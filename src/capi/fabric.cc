// C API: the TransferEngine.
#include "base/log.h"
#include "capi/fabric_handles.h"
#include "capi/fabric_refusals.h"
#include "fabric/gpu_memory.h"
#include "fabric/rails.h"
#include "fabric/topology.h"
#include "gpu/driver.h"

using namespace towline;  // NOLINT: C entry points

namespace {

fabric::TransferOp operation_of(uint32_t operation) {
  if (operation != TOWLINE_FABRIC_WRITE && operation != TOWLINE_FABRIC_READ)
    fail(Status::kInvalidArgument, "operation {} is neither a write nor a read", operation);
  return operation == TOWLINE_FABRIC_WRITE ? fabric::TransferOp::kWrite : fabric::TransferOp::kRead;
}

fabric::MemoryToRegister memory_of(void* address, uint64_t bytes, uint32_t access) {
  if ((access & ~3u) != 0) fail(Status::kInvalidArgument, "access {} has unknown bits", access);
  fabric::MemoryToRegister wanted;
  wanted.address = address;
  wanted.bytes = bytes;
  wanted.remote_read = (access & TOWLINE_FABRIC_READABLE) != 0;
  wanted.remote_write = (access & TOWLINE_FABRIC_WRITABLE) != 0;
  return wanted;
}

Status register_memory(towline_fabric_t* engine, const fabric::MemoryToRegister& wanted,
                       towline_fabric_memory_t** memory) {
  capi::need(memory, "memory");
  fabric::TransferEngine& fabric = capi::fabric_of(engine);
  // The handle first: what is registered is never left without one.
  auto made = std::make_unique<towline_fabric_memory>(towline_fabric_memory{nullptr, engine});
  towline_fabric_memory* const handle = made.get();
  {
    const std::lock_guard held{engine->mutex};
    engine->memories.emplace(handle, std::move(made));
  }
  try {
    handle->memory = fabric.register_memory(wanted);
  } catch (...) {
    const std::lock_guard held{engine->mutex};
    engine->memories.erase(handle);
    throw;
  }
  *memory = handle;
  return Status::kOk;
}

}  // namespace

fabric::TransferOptions capi::fabric_options(const towline_fabric_transfer_options_t* given) {
  const auto options = capi::take_options(given, "towline_fabric_transfer_options");
  if (options.message_bytes != 0) capi::need(options.message, "options.message");
  fabric::TransferOptions taken;
  taken.immediate = options.immediate;
  taken.count = options.count;
  taken.has_message = options.message != nullptr;
  taken.message = {static_cast<const uint8_t*>(options.message), options.message_bytes};
  if (options.timeout_ns != 0) taken.timeout_ns = options.timeout_ns;
  if (options.done != nullptr)
    taken.done = [done = options.done, context = options.context](Status status) {
      done(context, static_cast<int32_t>(status));
    };
  return taken;
}

extern "C" {

int32_t towline_fabric_create(const towline_fabric_options_t* given, towline_fabric_t** engine) {
  return capi::guard(__func__, [&] {
    capi::need(engine, "engine");
    const auto options = capi::take_options(given, "towline_fabric_options");
    if (options.rail_count == 0 || options.rail_count > fabric::kMaxRails)
      fail(Status::kInvalidArgument, "an engine has 1 to {} rails, not {}", fabric::kMaxRails,
           options.rail_count);
    capi::need(options.rails, "rails");
    fabric::TransferEngineOptions made;
    if (options.listen != nullptr) made.carrier.listen = options.listen;
    made.carrier.keys = secure::Keys::configured(Config::from_process());
    if (made.carrier.keys != nullptr)
      TOWLINE_LOG(kWarning, "a fabric's data goes over its rails in the clear, though secure.* is set");
    if (options.on_message != nullptr)
      made.on_message = [call = options.on_message, context = options.context](
                            Handle peer, std::span<const uint8_t> message) {
        call(context, peer.to_u64(), message.data(), message.size());
      };
    if (options.on_lost != nullptr)
      made.on_lost = [call = options.on_lost, context = options.context](
                         Handle peer, const std::string& why) { call(context, peer.to_u64(), why.c_str()); };
    if (options.on_counted != nullptr)
      made.on_counted = [call = options.on_counted, context = options.context](
                            Handle peer, uint32_t immediate, uint32_t count) {
        call(context, peer.to_u64(), immediate, count);
      };
    if (options.worker_cpu != nullptr) made.worker_cpu = *options.worker_cpu;
    std::vector<std::unique_ptr<fabric::Domain>> rails;
    for (size_t i = 0; i < options.rail_count; ++i) {
      capi::need(options.rails[i], "a rail's name");
      for (auto& rail : fabric::make_rails(options.rails[i])) rails.push_back(std::move(rail));
    }
    auto holder = std::make_unique<towline_fabric>();
    if (options.watcher_cpu != nullptr) holder->watcher_cpu = *options.watcher_cpu;
    holder->engine = std::make_unique<fabric::TransferEngine>(std::move(rails), std::move(made));
    *engine = holder.release();
    return Status::kOk;
  });
}

void towline_fabric_destroy(towline_fabric_t* engine) {
  if (engine != nullptr && !engine->inherited()) delete engine;
}

int32_t towline_fabric_topology(char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    const std::string text = fabric::describe_topology();
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_fabric_address(towline_fabric_t* engine, void* out, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    const auto blob = capi::fabric_of(engine).address();
    return capi::give(blob.data(), blob.size(), false, out, capacity, needed);
  });
}

int32_t towline_fabric_connect(towline_fabric_t* engine, const void* address, size_t bytes,
                               towline_fabric_peer_t* peer) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    capi::need(address, "address");
    *peer = capi::fabric_of(engine).connect({static_cast<const uint8_t*>(address), bytes}).to_u64();
    return Status::kOk;
  });
}

int32_t towline_fabric_disconnect(towline_fabric_t* engine, towline_fabric_peer_t peer) {
  return capi::guard(__func__, [&] {
    capi::fabric_of(engine).disconnect(Handle::from_u64(peer));
    return Status::kOk;
  });
}

int32_t towline_fabric_register(towline_fabric_t* engine, void* address, uint64_t bytes, uint32_t access,
                                towline_fabric_memory_t** memory) {
  return capi::guard(__func__,
                     [&] { return register_memory(engine, memory_of(address, bytes, access), memory); });
}

int32_t towline_fabric_register_dma_buf(towline_fabric_t* engine, void* address, uint64_t bytes,
                                        uint32_t access, int fd, uint64_t offset,
                                        towline_fabric_memory_t** memory) {
  return capi::guard(__func__, [&] {
    if (fd < 0) fail(Status::kInvalidArgument, "{} is no descriptor of a dma-buf", fd);
    fabric::MemoryToRegister wanted = memory_of(address, bytes, access);
    wanted.dmabuf_fd = fd;
    wanted.dmabuf_offset = offset;
    return register_memory(engine, wanted, memory);
  });
}

int32_t towline_fabric_register_gpu(towline_fabric_t* engine, void* address, uint64_t bytes, uint32_t access,
                                    uint32_t gpu, towline_fabric_memory_t** memory) {
  return capi::guard(__func__, [&] {
    (void)capi::fabric_of(engine);
    cuda::Device& device = cuda::nvidia_device();
    device.start();
    fabric::MemoryToRegister wanted = memory_of(address, bytes, access);
    const cuda::DmaExport exported = fabric::export_memory_of_gpu(device, gpu, wanted);
    return register_memory(engine, wanted, memory);
  });
}

int32_t towline_fabric_deregister(towline_fabric_t* engine, towline_fabric_memory_t* memory) {
  return capi::guard(__func__, [&] {
    capi::need(memory, "memory");
    fabric::TransferEngine& fabric = capi::fabric_of(engine);
    std::unique_lock held{engine->mutex};
    const auto known = engine->memories.find(memory);
    if (known == engine->memories.end()) fail(Status::kNotFound, "this memory is not registered here");
    const fabric::LocalMemory* const registered = known->second->memory;
    held.unlock();
    fabric.deregister_memory(registered);
    held.lock();
    engine->memories.erase(memory);
    return Status::kOk;
  });
}

int32_t towline_fabric_descriptor(towline_fabric_memory_t* memory, void* out, size_t capacity,
                                  size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(memory, "memory");
    const auto blob = fabric::TransferEngine::descriptor(*memory->memory);
    return capi::give(blob.data(), blob.size(), false, out, capacity, needed);
  });
}

int32_t towline_fabric_import(const void* descriptor, size_t bytes, towline_fabric_remote_t** remote) {
  return capi::guard(__func__, [&] {
    capi::need(descriptor, "descriptor");
    capi::need(remote, "remote");
    *remote = new towline_fabric_remote{
        fabric::TransferEngine::import({static_cast<const uint8_t*>(descriptor), bytes})};
    return Status::kOk;
  });
}

void towline_fabric_remote_release(towline_fabric_remote_t* remote) { delete remote; }

int32_t towline_fabric_single(towline_fabric_t* engine, uint32_t operation, towline_fabric_peer_t peer,
                              towline_fabric_memory_t* local, uint64_t local_offset,
                              towline_fabric_remote_t* remote, uint64_t remote_offset, uint64_t bytes,
                              const towline_fabric_transfer_options_t* options,
                              towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::LocalMemory& own = capi::local_of(engine, local);
    capi::need(remote, "remote");
    const fabric::TransferOp op = operation_of(operation);
    const fabric::TransferOptions taken = capi::fabric_options(options);
    const fabric::ScatterPart part{Handle::from_u64(peer), &own,          local_offset,
                                   &remote->memory,        remote_offset, bytes};
    return capi::start_on_fabric(
        "towline_fabric_single", transfer,
        [&](Handle* number) {
          return capi::fabric_of(engine).single(op, part.peer, *part.local, local_offset, *part.remote,
                                                remote_offset, bytes, taken, number);
        },
        [&](Status status) { return capi::why_single_refused(status, op, part, taken); });
  });
}

int32_t towline_fabric_paged(towline_fabric_t* engine, uint32_t operation, towline_fabric_peer_t peer,
                             towline_fabric_memory_t* local, towline_fabric_remote_t* remote,
                             const towline_fabric_pages_t* given,
                             const towline_fabric_transfer_options_t* options,
                             towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::LocalMemory& own = capi::local_of(engine, local);
    capi::need(remote, "remote");
    capi::need(given, "pages");
    const auto pages = capi::take_options(given, "towline_fabric_pages");
    if (pages.count != 0) {
      capi::need(pages.local_pages, "local_pages");
      capi::need(pages.remote_pages, "remote_pages");
    }
    const fabric::PageList list{&own,
                                &remote->memory,
                                {pages.local_pages, pages.count},
                                {pages.remote_pages, pages.count},
                                pages.page_bytes,
                                pages.local_stride,
                                pages.remote_stride,
                                pages.local_offset,
                                pages.remote_offset};
    const fabric::TransferOp op = operation_of(operation);
    const fabric::TransferOptions taken = capi::fabric_options(options);
    const Handle to = Handle::from_u64(peer);
    return capi::start_on_fabric(
        "towline_fabric_paged", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).paged(op, to, list, taken, number); },
        [&](Status status) { return capi::why_pages_refused(status, op, to, list, taken); });
  });
}

int32_t towline_fabric_signal(towline_fabric_t* engine, towline_fabric_peer_t peer,
                              const towline_fabric_transfer_options_t* options,
                              towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::TransferOptions taken = capi::fabric_options(options);
    const Handle to = Handle::from_u64(peer);
    return capi::start_on_fabric(
        "towline_fabric_signal", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).signal(to, taken, number); },
        [&](Status status) { return capi::why_refused(status, to, taken); });
  });
}

int32_t towline_fabric_poll(towline_fabric_t* engine, towline_fabric_transfer_t transfer) {
  return capi::guard(__func__, [&] { return capi::fabric_of(engine).poll(Handle::from_u64(transfer)); });
}

int32_t towline_fabric_wait(towline_fabric_t* engine, towline_fabric_transfer_t transfer,
                            uint64_t timeout_ns) {
  return capi::guard(__func__,
                     [&] { return capi::fabric_of(engine).wait(Handle::from_u64(transfer), timeout_ns); });
}

int32_t towline_fabric_wait_fenced(towline_fabric_t* engine, towline_fabric_transfer_t transfer,
                                   uint64_t timeout_ns) {
  return capi::guard(
      __func__, [&] { return capi::fabric_of(engine).wait_fenced(Handle::from_u64(transfer), timeout_ns); });
}

int32_t towline_fabric_cancel(towline_fabric_t* engine, towline_fabric_transfer_t transfer) {
  return capi::guard(__func__, [&] {
    capi::fabric_of(engine).cancel(Handle::from_u64(transfer));
    return Status::kOk;
  });
}

int32_t towline_fabric_release(towline_fabric_t* engine, towline_fabric_transfer_t transfer) {
  return capi::guard(__func__, [&] {
    capi::fabric_of(engine).release(Handle::from_u64(transfer));
    return Status::kOk;
  });
}

int32_t towline_fabric_counter(towline_fabric_t* engine, uint32_t immediate, uint64_t* value) {
  return capi::guard(__func__, [&] {
    capi::need(value, "value");
    *value = capi::fabric_of(engine).counter(immediate);
    return Status::kOk;
  });
}

int32_t towline_fabric_counter_wait(towline_fabric_t* engine, uint32_t immediate, uint64_t value,
                                    uint64_t timeout_ns) {
  return capi::guard(__func__,
                     [&] { return capi::fabric_of(engine).wait_counter(immediate, value, timeout_ns); });
}

}  // extern "C"
