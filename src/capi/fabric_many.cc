// C API: the TransferEngine's transfers to many peers, sends and receives, pools, watched words and counters.
#include <algorithm>

#include "capi/fabric_handles.h"
#include "capi/fabric_refusals.h"
#include "fabric/buffer_pool.h"
#include "gpu/driver.h"

using namespace towline;  // NOLINT: C entry points

struct towline_fabric_pool {
  fabric::BufferPool pool;
  towline_fabric_memory memory;  // of its engine
  towline_of_process process = {};
};

extern "C" {

int32_t towline_fabric_scatter(towline_fabric_t* engine, const towline_fabric_part_t* parts, size_t count,
                               const towline_fabric_transfer_options_t* options,
                               towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    if (count != 0) capi::need(parts, "parts");
    std::vector<fabric::ScatterPart> list;
    list.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const towline_fabric_part_t& part = parts[i];
      list.push_back({Handle::from_u64(part.peer),
                      part.local == nullptr ? nullptr : &capi::local_of(engine, part.local),
                      part.local_offset, part.remote == nullptr ? nullptr : &part.remote->memory,
                      part.remote_offset, part.bytes});
    }
    const fabric::TransferOptions taken = capi::fabric_options(options);
    return capi::start_on_fabric(
        "towline_fabric_scatter", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).scatter(list, taken, number); },
        [&](Status status) { return capi::why_scatter_refused(status, list, taken); });
  });
}

int32_t towline_fabric_group_create(towline_fabric_t* engine, const towline_fabric_peer_t* peers,
                                    size_t count, uint32_t* group) {
  return capi::guard(__func__, [&] {
    capi::need(group, "group");
    if (count != 0) capi::need(peers, "peers");
    std::vector<Handle> handles;
    for (size_t i = 0; i < count; ++i) handles.push_back(Handle::from_u64(peers[i]));
    *group = capi::fabric_of(engine).add_group(handles);
    return Status::kOk;
  });
}

int32_t towline_fabric_group_destroy(towline_fabric_t* engine, uint32_t group) {
  return capi::guard(__func__, [&] {
    capi::fabric_of(engine).remove_group(group);
    return Status::kOk;
  });
}

int32_t towline_fabric_group_signal(towline_fabric_t* engine, uint32_t group,
                                    const towline_fabric_transfer_options_t* options,
                                    towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::TransferOptions taken = capi::fabric_options(options);
    return capi::start_on_fabric(
        "towline_fabric_group_signal", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).signal_group(group, taken, number); },
        [&](Status status) { return capi::why_group_refused(status, group, taken); });
  });
}

int32_t towline_fabric_barrier(towline_fabric_t* engine, uint32_t group, uint32_t immediate,
                               const towline_fabric_transfer_options_t* options,
                               towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::TransferOptions taken = capi::fabric_options(options);
    return capi::start_on_fabric(
        "towline_fabric_barrier", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).barrier(group, immediate, taken, number); },
        [&](Status status) { return capi::why_barrier_refused(status, group, immediate, taken); });
  });
}

int32_t towline_fabric_send(towline_fabric_t* engine, towline_fabric_peer_t peer,
                            towline_fabric_memory_t* local, uint64_t offset, uint64_t bytes,
                            const towline_fabric_transfer_options_t* options,
                            towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::LocalMemory& own = capi::local_of(engine, local);
    const fabric::TransferOptions taken = capi::fabric_options(options);
    const Handle to = Handle::from_u64(peer);
    return capi::start_on_fabric(
        "towline_fabric_send", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).send(to, own, offset, bytes, taken, number); },
        [&](Status status) { return capi::why_message_refused(status, to, own, offset, bytes, taken); });
  });
}

int32_t towline_fabric_receive(towline_fabric_t* engine, towline_fabric_memory_t* local, uint64_t offset,
                               uint64_t bytes, const towline_fabric_receive_options_t* given,
                               towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::LocalMemory& own = capi::local_of(engine, local);
    const auto options = capi::take_options(given, "towline_fabric_receive_options");
    fabric::ReceiveOptions taken;
    taken.from = Handle::from_u64(options.from);
    if (options.timeout_ns != 0) taken.timeout_ns = options.timeout_ns;
    if (options.done != nullptr)
      taken.done = [done = options.done, context = options.context](Status status, Handle peer,
                                                                    uint64_t received) {
        done(context, static_cast<int32_t>(status), peer.to_u64(), received);
      };
    return capi::start_on_fabric(
        "towline_fabric_receive", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).receive(own, offset, bytes, taken, number); },
        [&](Status status) { return capi::why_message_refused(status, taken.from, own, offset, bytes, {}); });
  });
}

int32_t towline_fabric_received(towline_fabric_t* engine, towline_fabric_transfer_t transfer,
                                towline_fabric_peer_t* peer, uint64_t* bytes) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    capi::need(bytes, "bytes");
    Handle from;
    const Status status = capi::fabric_of(engine).received_from(Handle::from_u64(transfer), &from, bytes);
    *peer = from.to_u64();
    return status;
  });
}

int32_t towline_fabric_counter_when(towline_fabric_t* engine, uint32_t immediate, uint64_t value,
                                    const towline_fabric_transfer_options_t* options,
                                    towline_fabric_transfer_t* transfer) {
  return capi::guard(__func__, [&] {
    const fabric::TransferOptions taken = capi::fabric_options(options);
    return capi::start_on_fabric(
        "towline_fabric_counter_when", transfer,
        [&](Handle* number) { return capi::fabric_of(engine).when_counted(immediate, value, taken, number); },
        [&](Status status) -> std::string {
          if (status == Status::kInvalidArgument) return "a wait for a counter has no count and no message";
          if (status == Status::kLimitExceeded) return "this engine has as many counters as it can have";
          return capi::why_refused(status, {}, taken);
        });
  });
}

int32_t towline_fabric_counter_mirror(towline_fabric_t* engine, uint32_t immediate, uint64_t* word) {
  return capi::guard(__func__, [&] {
    if (reinterpret_cast<uintptr_t>(word) % sizeof *word != 0)
      fail(Status::kInvalidArgument, "word is not aligned to {} bytes", sizeof *word);
    capi::fabric_of(engine).mirror_counter(immediate, word);
    return Status::kOk;
  });
}

int32_t towline_fabric_pool_create(towline_fabric_t* engine, const towline_fabric_pool_options_t* given,
                                   towline_fabric_pool_t** pool) {
  return capi::guard(__func__, [&] {
    capi::need(pool, "pool");
    const auto options = capi::take_options(given, "towline_fabric_pool_options");
    if ((options.access & ~3u) != 0)
      fail(Status::kInvalidArgument, "access {} has unknown bits", options.access);
    auto made = std::unique_ptr<towline_fabric_pool>(new towline_fabric_pool{
        {capi::fabric_of(engine),
         {options.buffer_bytes, options.buffers, (options.access & TOWLINE_FABRIC_READABLE) != 0,
          (options.access & TOWLINE_FABRIC_WRITABLE) != 0}},
        {}});
    made->memory = {&made->pool.memory(), engine};
    *pool = made.release();
    return Status::kOk;
  });
}

void towline_fabric_pool_destroy(towline_fabric_pool_t* pool) {
  if (pool != nullptr && !pool->process.inherited()) delete pool;
}

int32_t towline_fabric_pool_take(towline_fabric_pool_t* pool, towline_fabric_buffer_t* buffer) {
  if (pool == nullptr || buffer == nullptr)
    return capi::refuse_null(__func__, pool == nullptr ? "pool" : "buffer");
  if (pool->process.inherited()) return capi::answer(__func__, Status::kForked);
  const auto taken = pool->pool.take();
  if (!taken) return TOWLINE_AGAIN;
  *buffer = {taken.index, 0, taken.address, &pool->memory, taken.offset};
  return TOWLINE_OK;
}

int32_t towline_fabric_pool_give(towline_fabric_pool_t* pool, uint32_t index) {
  return capi::guard(__func__, [&] {
    capi::need(pool, "pool");
    if (pool->process.inherited()) return Status::kForked;
    pool->pool.give_back(index);
    return Status::kOk;
  });
}

int32_t towline_fabric_watch(towline_fabric_t* engine, uint32_t gpus, towline_fabric_changed_fn changed,
                             void* context, towline_fabric_word_t* word) {
  return capi::guard(__func__, [&] {
    (void)capi::fabric_of(engine);
    capi::need(reinterpret_cast<const void*>(changed), "changed");
    capi::need(word, "word");
    std::unique_lock held{engine->mutex};
    if (engine->closing) fail(Status::kClosed, "the engine is about to go");
    if (engine->watchers == nullptr) {
      fabric::WatcherOptions options;
      options.cpu = engine->watcher_cpu;
      if (gpus != 0) {
        options.device = &cuda::nvidia_device();
        options.device->start();
      }
      engine->watchers = std::make_unique<fabric::Watchers>(options);
    }
    held.unlock();  // it waits for callbacks, which may call what needs the engine's lock
    const auto made = engine->watchers->watch(
        [changed, context](uint64_t before, uint64_t now) { return changed(context, before, now) != 0; });
    *word = {made.index, 0, made.host, made.gpu};
    return Status::kOk;
  });
}

int32_t towline_fabric_unwatch(towline_fabric_t* engine, uint32_t index) {
  return capi::guard(__func__, [&] {
    (void)capi::fabric_of(engine);
    std::unique_lock held{engine->mutex};
    if (engine->watchers == nullptr) fail(Status::kNotFound, "word {} is not watched", index);
    held.unlock();  // as above
    engine->watchers->unwatch(index);
    return Status::kOk;
  });
}

int32_t towline_fabric_rails(towline_fabric_t* engine, towline_fabric_rail_t* rails, size_t rail_bytes,
                             size_t capacity, size_t* count) {
  return capi::guard(__func__, [&] {
    capi::need(count, "count");
    if (capacity != 0) capi::need(rails, "rails");
    if (capacity != 0 && (rail_bytes < sizeof(char[64]) || rail_bytes > 4096))
      fail(Status::kInvalidArgument, "rail_bytes is {}; set it to sizeof the struct", rail_bytes);
    const auto known = capi::fabric_of(engine).rails();
    *count = known.size();
    for (size_t i = 0; i < std::min(capacity, known.size()); ++i) {
      const auto& [traits, counters] = known[i];
      towline_fabric_rail_t rail{};
      traits.name.copy(rail.name, sizeof rail.name - 1);
      rail.bandwidth_bytes_per_s = traits.bandwidth_bytes_per_s;
      rail.requests = counters.requests;
      rail.posts = counters.posts;
      rail.bytes = counters.bytes;
      rail.connections = counters.connections;
      rail.breaks = counters.breaks;
      rail.evictions = counters.evictions;
      rail.retried = counters.retried;
      rail.down = counters.down ? 1 : 0;
      rail.numa_node = traits.numa_node;
      rail.longest_pause_ns = counters.longest_pause_ns;
      capi::give_element(rails, rail_bytes, i, rail);
    }
    return Status::kOk;
  });
}

}  // extern "C"
