// nixlAgent: lists, and requests made from them.
#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "agent_data.h"
#include "engine_requests.h"
#include "explain.h"
#include "notif.h"
#include "split.h"

using namespace towline::nixl;  // NOLINT: this file is that interface's other side

namespace {

static_assert(sizeof(int) == 4, "indices are handed to Towline as they are");

towline_picks_t picks_of(std::span<const int> indices) noexcept {
  return {indices.data(), sizeof(int), 0, 0, 0, indices.size()};
}

// Blocks of one device are read from the rows in place; only lists over several devices need copies.
int32_t create_list(towline_agent_t* agent, towline_peer_t* peer, nixl_mem_t type, const Rows& rows,
                    towline_block_list_t** list) {
  const uint32_t kind = kind_of(type);
  const uint64_t device = type == DRAM_SEG || rows.count == 0 ? 0 : rows.device(0);
  bool one_device = true;
  if (type != DRAM_SEG) {
    for (size_t i = 1; i < rows.differing() && one_device; ++i) one_device = rows.device(i) == device;
  }
  if (one_device) {
    return towline_block_list_create_flat(agent, peer, kind, rows.addresses, rows.address_stride,
                                          rows.lengths, rows.other_stride, device, rows.count, list);
  }
  std::vector<towline_blocks_t> blocks(rows.count);
  for (size_t i = 0; i < rows.count; ++i) {
    blocks[i].address = rows.address(i);
    blocks[i].length = rows.length(i);
    blocks[i].device = rows.device(i);
    blocks[i].kind = kind;
  }
  return towline_block_list_create(agent, peer, blocks.data(), sizeof(towline_blocks_t), blocks.size(), list);
}

constexpr size_t kStridedColumns = 5;
constexpr uint64_t kMostDescriptors = uint64_t{1} << 31;  // the limit of 31-bit indices
constexpr uint64_t kMostWrittenOut = 10'000'000;          // the limit for a list of single entries

std::vector<uint64_t> write_out(StridedRows rows, uint64_t total) {
  std::vector<uint64_t> result;
  result.reserve(3 * total);
  for (size_t i = 0; i < rows.count; ++i) {
    const uint64_t* row = rows.data + kStridedColumns * i;
    for (uint64_t block = 0; block < row[4]; ++block)
      result.insert(result.end(), {row[0] + block * row[3], row[1], row[2]});
  }
  return result;
}

// How many descriptors the rows describe.
nixl_status_t count_of(StridedRows rows, uint64_t& total, const char* call) {
  for (size_t i = 0; i < rows.count; ++i) {
    const uint64_t count = rows.data[kStridedColumns * i + 4];
    total = count > kMostDescriptors ? count : total + count;
    if (total > kMostDescriptors) {
      return fail(NIXL_ERR_INVALID_PARAM, "{}: rows 0 to {} describe more than 2^31 descriptors", call, i);
    }
  }
  return NIXL_SUCCESS;
}

nixl_status_t too_many(uint64_t total, const char* call) {
  return fail(NIXL_ERR_INVALID_PARAM, "{}: {} descriptors, where {} are the most", call, total,
              kMostWrittenOut);
}

// A peer that leaves first takes its memory back. NIXL's users need to know that the peer is gone.
nixl_status_t fail_list(const Remote* remote, int32_t status, const char* call) {
  const bool gone_memory = status == TOWLINE_STALE || status == TOWLINE_OUT_OF_RANGE;
  if (gone_memory && remote != nullptr && remote->leaves())
    return fail(NIXL_ERR_REMOTE_DISCONNECT, "{}: agent '{}' has left", call, remote->peer().name());
  return fail(list_to_nixl(towline::Status{status}), "{}: {}", call, towline_last_error());
}

// Both have the same number of rows.
bool same_lengths(const Rows& a, const Rows& b) noexcept {
  uint64_t different = 0;
  for (size_t i = 0; i < std::max(a.differing(), b.differing()); ++i) different |= a.length(i) ^ b.length(i);
  return different == 0;
}

}  // namespace

// ---- Lists

bool nixlAgentData::caught_up_lately() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // the last tick: does not read a counter
  const int64_t tick = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  if (caught_up_at.load(std::memory_order_relaxed) == tick) return true;
  caught_up_at.store(tick, std::memory_order_relaxed);
  return false;
}

nixl_status_t nixlAgentData::find_remote(const std::string& agent_name, std::shared_ptr<Remote>& remote,
                                         const char* call) {
  remote = nullptr;
  if (agent_name.empty() || agent_name == name) return NIXL_SUCCESS;
  // Messages about agents must be processed first. For a known agent this may be late by a few milliseconds,
  // because checking takes as long as making a list.
  remote = remotes.find(agent_name);
  if (remote == nullptr || !caught_up_lately()) {
    catch_up();
    remote = remotes.find(agent_name);
  }
  if (remote != nullptr) return NIXL_SUCCESS;
  return fail(NIXL_ERR_NOT_FOUND, "{}: the metadata of agent '{}' is not loaded", call, agent_name);
}

nixl_status_t nixlAgentData::make_list(const std::string& agent_name, nixl_mem_t type, const Rows& rows,
                                       ListHandle& list, std::shared_ptr<Remote>& of, const char* call) {
  if (rows.count == 0) return fail(NIXL_ERR_INVALID_PARAM, "{}: the list is empty", call);
  std::shared_ptr<Remote> remote;
  if (const auto status = find_remote(agent_name, remote, call); status != NIXL_SUCCESS) return status;
  if (remote != nullptr) {
    if (const size_t first = remote->first_unknown(type, rows); first != rows.count) {
      return fail(NIXL_ERR_NOT_FOUND,
                  "{}: the metadata that is loaded of agent '{}' does not tell of descriptor {}", call,
                  agent_name, first);
    }
  }
  towline_block_list_t* made = nullptr;
  if (is_stored(type)) {
    std::vector<towline_blocks_t> blocks;
    size_t missing = 0;
    if (!memory.storage_blocks(type, rows, blocks, missing)) {
      return fail(NIXL_ERR_NOT_FOUND, "{}: descriptor {} lies in no registered {}", call, missing,
                  type == BLK_SEG ? "block device" : "file");
    }
    towline::detail::check(towline_block_list_create(agent->native(), nullptr, blocks.data(),
                                                     sizeof(towline_blocks_t), blocks.size(), &made));
    list.reset(made);
    return NIXL_SUCCESS;
  }
  if (size_t other = 0; remote == nullptr && type == DRAM_SEG && !memory.has_devices(rows, other)) {
    return fail(NIXL_ERR_NOT_FOUND, "{}: descriptor {} lies in no memory registered on device {}", call,
                other, rows.device(other));
  }
  const int32_t status =
      create_list(agent->native(), remote == nullptr ? nullptr : remote->peer().native(), type, rows, &made);
  if (status < 0) return fail_list(remote.get(), status, call);
  list.reset(made);
  of = std::move(remote);
  return NIXL_SUCCESS;
}

nixl_status_t nixlAgentData::make_list(const std::string& agent_name, nixl_mem_t type, StridedRows rows,
                                       ListHandle& list, std::shared_ptr<Remote>& of, const char* call) {
  uint64_t total = 0;
  if (const auto status = count_of(rows, total, call); status != NIXL_SUCCESS) return status;
  std::shared_ptr<Remote> remote;
  if (const auto status = find_remote(agent_name, remote, call); status != NIXL_SUCCESS) return status;
  // Files, devices and ranges from partial metadata are looked up by descriptor.
  if (is_stored(type) || (remote != nullptr && !remote->whole())) {
    if (total > kMostWrittenOut) return too_many(total, call);
    const std::vector<uint64_t> written_out = write_out(rows, total);
    return make_list(agent_name, type, Rows::of(written_out.data(), total), list, of, call);
  }
  std::vector<towline_blocks_t> blocks;
  blocks.reserve(rows.count);
  for (size_t i = 0; i < rows.count; ++i) {
    const uint64_t* row = rows.data + kStridedColumns * i;
    if (row[4] == 0) continue;
    towline_blocks_t& made = blocks.emplace_back();
    made.address = row[0];
    made.length = row[1];
    made.device = type == DRAM_SEG ? 0 : row[2];
    made.kind = kind_of(type);
    made.dimensions = 1;
    made.stride[0] = row[3];
    made.count[0] = row[4];
  }
  if (blocks.empty()) return fail(NIXL_ERR_INVALID_PARAM, "{}: the list is empty", call);
  towline_block_list_t* made = nullptr;
  const int32_t status =
      towline_block_list_create(agent->native(), remote == nullptr ? nullptr : remote->peer().native(),
                                blocks.data(), sizeof(towline_blocks_t), blocks.size(), &made);
  if (status < 0) return fail_list(remote.get(), status, call);
  list.reset(made);
  of = std::move(remote);
  return NIXL_SUCCESS;
}

nixl_status_t nixlAgentData::make_stored(const nixlBackendH& backend, nixl_mem_t type, const Rows& rows,
                                         ListHandle& list, const char* call) {
  if (rows.count == 0) return fail(NIXL_ERR_INVALID_PARAM, "{}: the list is empty", call);
  towline_block_list_t* made = nullptr;
  std::optional<size_t> missing;
  const int32_t status = backend.objects->make_list(type, rows, &made, missing);
  if (missing)
    return fail(NIXL_ERR_NOT_FOUND, "{}: descriptor {} lies in no registered object", call, *missing);
  if (status < 0) return fail(list_to_nixl(towline::Status{status}), "{}: {}", call, towline_last_error());
  list.reset(made);
  return NIXL_SUCCESS;
}

ListHandle nixlAgentData::try_list(const Remote* remote, const nixl_xfer_dlist_t& descs) const {
  towline_block_list_t* made = nullptr;
  const int32_t status = create_list(agent->native(), remote == nullptr ? nullptr : remote->peer().native(),
                                     descs.getType(), Rows::of(descs), &made);
  return ListHandle{status < 0 ? nullptr : made};
}

namespace {

bool has_objects(const nixlBackendH* backend) noexcept { return backend->objects != nullptr; }

// Makes the lists of plugins' engines, and moves those backends out of `backends`.
nixl_status_t prepare_engines(nixlAgentData& data, const std::string& agent_name, nixl_mem_t type,
                              const Rows& rows, std::vector<nixlBackendH*>& backends, nixlDlistH& made,
                              const char* call) {
  std::vector<nixlBackendH*> engines;
  std::ranges::copy_if(backends, std::back_inserter(engines),
                       [](const nixlBackendH* backend) { return backend->engine != nullptr; });
  std::erase_if(backends, [](const nixlBackendH* backend) { return backend->engine != nullptr; });
  nixl_status_t status = data.find_remote(agent_name, made.of, call);
  if (status != NIXL_SUCCESS) return status;
  for (nixlBackendH* backend : engines) {
    EngineList list(type);
    const nixl_status_t tried = backend->engine->make_list(agent_name, type, rows, list, call);
    if (tried == NIXL_SUCCESS) made.engines.emplace_back(backend, std::move(list));
    if (tried != NIXL_SUCCESS) status = tried;
  }
  return made.engines.empty() ? status : NIXL_SUCCESS;
}

// `make` makes the list, `make_stored_list` the list of a backend's store.
template <class Make, class MakeStored>
nixl_status_t prepare(nixlAgentData& data, const std::string& agent_name, nixl_mem_t type, const Rows& rows,
                      nixlDlistH*& list, const nixl_opt_args_t* extra_params, Make make,
                      MakeStored make_stored_list) {
  static constexpr const char* kCall = "prepXferDlist";
  list = nullptr;
  const bool others = !agent_name.empty() && agent_name != data.name;
  std::vector<nixlBackendH*> backends = data.candidates(extra_params, type, others, kCall);
  if (backends.empty()) return NIXL_ERR_NOT_FOUND;
  return guard(kCall, list_to_nixl, [&] {
    auto made = std::make_unique_for_overwrite<nixlDlistH>();  // its members have initialisers
    // One list for memory that this agent reaches itself, and one for the store of the first backend that has
    // one. If one of them can't be made, the other is used.
    std::vector<nixlBackendH*> in_order;  // as they were, if engines are moved out of them
    nixl_status_t status = NIXL_SUCCESS;
    if (data.has_engines()) {
      in_order = backends;
      status = prepare_engines(data, agent_name, type, rows, backends, *made, kCall);
      if (backends.empty() && made->engines.empty())
        return fail(status, "{}: {}", kCall, std::string{last_error()});
      status = NIXL_SUCCESS;
    }
    const auto stored = std::ranges::find_if(backends, has_objects);
    if (stored != backends.end()) {
      const nixlBackendH* store = *stored;
      status = make_stored_list(*store, *made, kCall);
      std::erase_if(backends, [&](const nixlBackendH* backend) {
        return has_objects(backend) && (backend != store || status != NIXL_SUCCESS);
      });
    }
    if (std::ranges::any_of(backends, [](const nixlBackendH* backend) { return !has_objects(backend); })) {
      status = make(*made, kCall);
      if (status != NIXL_SUCCESS && (made->stored || !made->engines.empty()))
        std::erase_if(backends, [](const nixlBackendH* backend) { return !has_objects(backend); });
      else if (status != NIXL_SUCCESS)
        return status;
    } else if (status != NIXL_SUCCESS && made->engines.empty()) {
      return status;
    }
    if (!made->engines.empty()) {
      for (const auto& entry : made->engines) backends.push_back(entry.first);
      std::ranges::sort(backends, {}, [&](nixlBackendH* backend) {
        return std::ranges::find(in_order, backend) - in_order.begin();
      });
    }
    made->remote = !agent_name.empty();
    made->type = type;
    made->backends = std::move(backends);
    data.lists.add(made.get());
    list = made.release();
    return NIXL_SUCCESS;
  });
}

}  // namespace

namespace towline::nixl {

nixl_status_t prep_xfer_dlist(const nixlAgent& agent, const std::string& agent_name, nixl_mem_t type,
                              const Rows& rows, nixlDlistH*& list, const nixl_opt_args_t* extra_params) {
  nixlAgentData& data = AgentAccess::data(agent);
  return prepare(
      data, agent_name, type, rows, list, extra_params,
      [&](nixlDlistH& made, const char* call) {
        return data.make_list(agent_name, type, rows, made.list, made.of, call);
      },
      [&](const nixlBackendH& store, nixlDlistH& made, const char* call) {
        return nixlAgentData::make_stored(store, type, rows, made.stored, call);
      });
}

nixl_status_t prep_strided_dlist(const nixlAgent& agent, const std::string& agent_name, nixl_mem_t type,
                                 StridedRows given, nixlDlistH*& list, const nixl_opt_args_t* extra_params) {
  nixlAgentData& data = AgentAccess::data(agent);
  // Read once: another thread may write to the caller's table between counting and writing out.
  const std::vector<uint64_t> kept(given.data, given.data + kStridedColumns * given.count);
  const StridedRows rows = {kept.data(), given.count};
  // Engines take descriptors one by one.
  std::vector<uint64_t> written_out;
  uint64_t count = 0;
  if (data.has_engines()) {
    if (const auto status = count_of(rows, count, "prepXferDlist"); status != NIXL_SUCCESS) return status;
    if (count > kMostWrittenOut) return too_many(count, "prepXferDlist");
    written_out = write_out(rows, count);
  }
  return prepare(
      data, agent_name, type, Rows::of(written_out.data(), count), list, extra_params,
      [&](nixlDlistH& made, const char* call) {
        return data.make_list(agent_name, type, rows, made.list, made.of, call);
      },
      [&](const nixlBackendH& store, nixlDlistH& made, const char* call) {
        uint64_t total = 0;
        if (const auto status = count_of(rows, total, call); status != NIXL_SUCCESS) return status;
        if (total > kMostWrittenOut) return too_many(total, call);
        const std::vector<uint64_t> all = write_out(rows, total);
        return nixlAgentData::make_stored(store, type, Rows::of(all.data(), total), made.stored, call);
      });
}

}  // namespace towline::nixl

nixl_status_t nixlAgent::prepXferDlist(const std::string& agent_name, const nixl_xfer_dlist_t& descs,
                                       nixlDlistH*& dlist_hndl, const nixl_opt_args_t* extra_params) const {
  return prep_xfer_dlist(*this, agent_name, descs.getType(), Rows::of(descs), dlist_hndl, extra_params);
}

nixl_status_t nixlAgent::prepXferDlist(const nixl_xfer_dlist_t& descs, nixlDlistH*& dlist_hndl,
                                       const nixl_opt_args_t* extra_params) const {
  return prepXferDlist(NIXL_INIT_AGENT, descs, dlist_hndl, extra_params);
}

nixl_status_t nixlAgent::releasedDlistH(nixlDlistH* dlist_hndl) const {
  if (dlist_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "releasedDlistH: the list is null");
  data->lists.remove(dlist_hndl);
  delete dlist_hndl;
  return NIXL_SUCCESS;
}

// ---- Making requests

namespace {

// Judged by the mean length of the list's blocks.
bool is_large(const Sides& sides) noexcept {
  const uint64_t blocks = std::max<uint64_t>(towline_block_list_blocks(sides.local), 1);
  return towline_block_list_bytes(sides.local) / blocks * sides.descs >= kSplitBytes;
}

// The route is a JSON text, and reading it takes as long as making a request. So it is read once per peer,
// for host memory, which is moved most.
bool copied_in_host(const nixlXferReqH& request, bool host_memory) {
  const bool known = host_memory && request.with->host_copy() != Remote::HostCopy::kUnknown;
  if (known) return request.with->host_copy() == Remote::HostCopy::kYes;
  std::string route;
  const bool answer = xfer_route(&request, route) == NIXL_SUCCESS && is_host_copy(route);
  if (host_memory) request.with->set_host_copy(answer);
  return answer;
}

}  // namespace

nixl_status_t nixlAgentData::make_request(nixl_xfer_op_t operation, const Sides& sides, nixlBackendH* backend,
                                          std::shared_ptr<Remote> with, const nixl_opt_args_t* extra_params,
                                          nixlXferReqH*& request, const char* call) {
  if (with != nullptr && with->gone()) {
    return fail(NIXL_ERR_NOT_FOUND,
                "{}: the metadata of agent '{}' was invalidated after the list was prepared", call,
                with->peer().name());
  }
  auto made = std::make_unique_for_overwrite<nixlXferReqH>();  // its members have initialisers
  made->backend = backend;
  made->with = std::move(with);
  made->descs = sides.descs;
  made->events = events.get();
  made->writes = operation == NIXL_WRITE;
  made->timeout_ns = backend->timeout_ns != 0 ? backend->timeout_ns : timeout_ns;
  const auto* const from_picks = made->writes ? sides.local_picks : sides.remote_picks;
  const auto* const to_picks = made->writes ? sides.remote_picks : sides.local_picks;
  towline_transfer_options_t options = {.struct_size = sizeof(towline_transfer_options_t),
                                        .from = from_picks != nullptr ? *from_picks : towline_picks_t{},
                                        .to = to_picks != nullptr ? *to_picks : towline_picks_t{},
                                        .notice = nullptr,
                                        .notice_bytes = 0,
                                        .counter_key = 0,
                                        .counter_add = 0,
                                        .timeout_ns = made->timeout_ns,
                                        .backend = towline::detail::or_null(backend->forced),
                                        .workers = backend->threads,
                                        .queue_completion = 0,
                                        .user_data = nullptr,
                                        .callback = nullptr};
  std::string notice;
  if (const nixl_blob_t* notif = notif_of(extra_params)) {
    if (const auto status = set_notif(*made, *notif, notice, call); status != NIXL_SUCCESS) return status;
    options.notice = notice.data();
    options.notice_bytes = notice.size();
  }
  const auto create = [&](towline_transfer_t** transfer) {
    towline_agent_t* const by = backend->objects == nullptr ? agent->native() : backend->objects->native();
    return towline_transfer_create(by, made->writes ? sides.local : sides.remote,
                                   made->writes ? sides.remote : sides.local, &options, transfer);
  };
  const bool may_split = backend->threads == 0 && made->with != nullptr && is_large(sides);
  if (may_split && sides.host_memory && made->with->host_copy() == Remote::HostCopy::kYes)
    options.workers = kSplitEngines;
  const int32_t status = create(&made->transfer);
  if (status == TOWLINE_STALE && made->with != nullptr && made->with->leaves())
    return fail(NIXL_ERR_REMOTE_DISCONNECT, "{}: agent '{}' has left", call, made->with->peer().name());
  if (status < 0) return fail(to_nixl(towline::Status{status}), "{}: {}", call, towline_last_error());
  if (may_split && options.workers == 0 && copied_in_host(*made, sides.host_memory)) {
    options.workers = kSplitEngines;
    towline_transfer_t* split = nullptr;
    if (create(&split) >= 0) {
      (void)towline_transfer_destroy(made->transfer, 0);  // never posted: ends at once
      made->transfer = split;
    }
  }
  requests.add(made.get());
  request = made.release();
  return NIXL_SUCCESS;
}

namespace {

towline_picks_t picks_of(const Indices& indices) noexcept {
  return {indices.data, indices.data == nullptr ? 0 : indices.bytes, 0, indices.start, indices.step,
          indices.count};
}

bool holds(const std::vector<nixlBackendH*>& backends, const nixlBackendH* backend) noexcept {
  return std::ranges::find(backends, backend) != backends.end();
}

// The first backend that both sides have and the caller allows; else null.
nixlBackendH* common_backend(const std::vector<nixlBackendH*>& local,
                             const std::vector<nixlBackendH*>& remote,
                             const nixl_opt_args_t* extra_params) noexcept {
  const bool limited = extra_params != nullptr && !extra_params->backends.empty();
  for (nixlBackendH* backend : limited ? extra_params->backends : local) {
    if (backend != nullptr && holds(local, backend) && holds(remote, backend)) return backend;
  }
  return nullptr;
}

nixl_status_t make_from_lists(const nixlAgent& agent, nixl_xfer_op_t operation, const nixlDlistH* local,
                              const towline_picks_t& local_picks, const nixlDlistH* remote,
                              const towline_picks_t& remote_picks, nixlXferReqH*& request,
                              const nixl_opt_args_t* extra_params) {
  static constexpr const char* kCall = "makeXferReq";
  request = nullptr;
  nixlAgentData& data = AgentAccess::data(agent);
  if (local == nullptr || remote == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "{}: a list is null", kCall);
  if (local->remote || !remote->remote) {
    return fail(NIXL_ERR_INVALID_PARAM,
                "{}: the local list is to be prepared for NIXL_INIT_AGENT, the other for an agent", kCall);
  }
  if (local_picks.count == 0 || local_picks.count != remote_picks.count) {
    return fail(NIXL_ERR_INVALID_PARAM, "{}: {} local and {} remote indices", kCall, local_picks.count,
                remote_picks.count);
  }
  nixlBackendH* backend = common_backend(local->backends, remote->backends, extra_params);
  if (backend == nullptr) {
    return fail(
        NIXL_ERR_INVALID_PARAM, "{}: the lists have no backend in common{}", kCall,
        extra_params == nullptr || extra_params->backends.empty() ? "" : " that is among those given");
  }
  if (backend->engine != nullptr) [[unlikely]]
    return guard(kCall, [&] {
      return make_engine_request_of(data, operation, backend, local, local_picks, remote, remote_picks,
                                    request, extra_params, kCall);
    });
  const bool stored = has_objects(backend);
  towline_block_list_t* const here = stored ? local->stored.get() : local->list.get();
  towline_block_list_t* const there = stored ? remote->stored.get() : remote->list.get();
  return guard(kCall, [&] {
    const bool host_memory = local->type == DRAM_SEG && remote->type == DRAM_SEG;
    const Sides sides = {here, &local_picks, there, &remote_picks, local_picks.count, host_memory};
    return data.make_request(operation, sides, backend, remote->of, extra_params, request, kCall);
  });
}

}  // namespace

nixl_status_t nixlAgent::makeXferReq(const nixl_xfer_op_t& operation, const nixlDlistH* local_side,
                                     const std::vector<int>& local_indices, const nixlDlistH* remote_side,
                                     const std::vector<int>& remote_indices, nixlXferReqH*& req_hndl,
                                     const nixl_opt_args_t* extra_params) const {
  return make_from_lists(*this, operation, local_side, picks_of(local_indices), remote_side,
                         picks_of(remote_indices), req_hndl, extra_params);
}

nixl_status_t nixlAgent::makeXferReq(const nixl_xfer_op_t& operation, const nixlDlistH& local_side,
                                     std::span<const int> local_indices, const nixlDlistH& remote_side,
                                     std::span<const int> remote_indices, nixlXferReqH*& req_hndl,
                                     const nixl_opt_args_t* extra_params) const {
  return make_from_lists(*this, operation, &local_side, picks_of(local_indices), &remote_side,
                         picks_of(remote_indices), req_hndl, extra_params);
}

namespace towline::nixl {

nixl_status_t make_xfer_req(const nixlAgent& agent, nixl_xfer_op_t operation, const nixlDlistH* local,
                            const Indices& local_indices, const nixlDlistH* remote,
                            const Indices& remote_indices, nixlXferReqH*& request,
                            const nixl_opt_args_t* extra_params) {
  return make_from_lists(agent, operation, local, picks_of(local_indices), remote, picks_of(remote_indices),
                         request, extra_params);
}

bool is_connected(const nixlDlistH* list) noexcept {
  return list != nullptr && (list->of == nullptr || list->of->is_alive());
}

namespace {

// The arguments of create_xfer_req.
struct Wanted {
  nixl_xfer_op_t operation;
  nixl_mem_t local_type;
  const Rows& local;
  nixl_mem_t remote_type;
  const Rows& remote;
  const std::string& remote_agent;
  bool may_wait;
};
constexpr const char* kCreate = "createXferReq";

nixl_status_t no_backend(const Wanted& wanted) {
  return fail(NIXL_ERR_NOT_FOUND, "{}: none of the backends serves {} here and {} of agent '{}'", kCreate,
              nixlEnumStrings::memTypeStr(wanted.local_type), nixlEnumStrings::memTypeStr(wanted.remote_type),
              wanted.remote_agent);
}

nixl_status_t create_by(nixlAgentData& data, nixlBackendH* backend, const Wanted& wanted,
                        nixlXferReqH*& request, const nixl_opt_args_t* extra_params) {
  return guard(kCreate, list_to_nixl, [&] {
    ListHandle here;
    ListHandle there;
    std::shared_ptr<Remote> with;
    nixl_status_t status = NIXL_SUCCESS;
    if (has_objects(backend)) {
      status = nixlAgentData::make_stored(*backend, wanted.local_type, wanted.local, here, kCreate);
      if (status == NIXL_SUCCESS)
        status = nixlAgentData::make_stored(*backend, wanted.remote_type, wanted.remote, there, kCreate);
    } else {
      static const std::string kThisAgent = NIXL_INIT_AGENT;
      status = data.make_list(kThisAgent, wanted.local_type, wanted.local, here, with, kCreate);
    }
    if (status == NIXL_SUCCESS && !has_objects(backend)) {
      status = data.make_list(wanted.remote_agent, wanted.remote_type, wanted.remote, there, with, kCreate);
    }
    if (status != NIXL_SUCCESS) return status;
    if (!wanted.may_wait && with != nullptr && !with->is_alive()) return NIXL_IN_PROG;
    const bool host_memory = wanted.local_type == DRAM_SEG && wanted.remote_type == DRAM_SEG;
    const Sides sides = {here.get(), nullptr, there.get(), nullptr, wanted.local.count, host_memory};
    return data.make_request(wanted.operation, sides, backend, std::move(with), extra_params, request,
                             kCreate);
  });
}

// For backends that are plugins' engines: makes the request by the first one that knows the memory.
nixl_status_t create_by_any(nixlAgentData& data, const Wanted& wanted, nixlXferReqH*& request,
                            const nixl_opt_args_t* extra_params) {
  const bool others = wanted.remote_agent != data.name;
  nixl_status_t status = NIXL_ERR_NOT_FOUND;
  bool tried = false;
  for (nixlBackendH* backend : data.candidates(extra_params, wanted.local_type, others, kCreate)) {
    if (!backend->serves(wanted.remote_type)) continue;
    tried = true;
    status = backend->engine == nullptr
                 ? create_by(data, backend, wanted, request, extra_params)
                 : guard(kCreate, [&] {
                     return create_engine_request(data, wanted.operation, backend, wanted.local_type,
                                                  wanted.local, wanted.remote_type, wanted.remote,
                                                  wanted.remote_agent, request, extra_params, kCreate);
                   });
    if (status != NIXL_ERR_NOT_FOUND) return status;
  }
  return tried ? fail(status, "{}", std::string{last_error()}) : no_backend(wanted);
}

}  // namespace

nixl_status_t create_xfer_req(const nixlAgent& agent, nixl_xfer_op_t operation, nixl_mem_t local_type,
                              const Rows& local, nixl_mem_t remote_type, const Rows& remote,
                              const std::string& remote_agent, nixlXferReqH*& request,
                              const nixl_opt_args_t* extra_params, bool may_wait) {
  static constexpr const char* kCall = kCreate;
  request = nullptr;
  nixlAgentData& data = AgentAccess::data(agent);
  if (local.count != remote.count || local.count == 0) {
    return fail(NIXL_ERR_INVALID_PARAM, "{}: {} local and {} remote descriptors", kCall, local.count,
                remote.count);
  }
  if (remote_agent.empty()) return fail(NIXL_ERR_NOT_FOUND, "{}: the remote agent's name is empty", kCall);
  if (!same_lengths(local, remote)) {
    return fail(NIXL_ERR_INVALID_PARAM, "{}: local and remote descriptors differ in length", kCall);
  }
  const Wanted wanted = {operation, local_type, local, remote_type, remote, remote_agent, may_wait};
  if (data.has_engines()) [[unlikely]]
    return create_by_any(data, wanted, request, extra_params);
  nixlBackendH* backend = data.backend_for(extra_params, local_type, remote_type, remote_agent != data.name);
  if (backend == nullptr) return no_backend(wanted);
  return create_by(data, backend, wanted, request, extra_params);
}

}  // namespace towline::nixl

nixl_status_t nixlAgent::createXferReq(const nixl_xfer_op_t& operation, const nixl_xfer_dlist_t& local_descs,
                                       const nixl_xfer_dlist_t& remote_descs, const std::string& remote_agent,
                                       nixlXferReqH*& req_hndl, const nixl_opt_args_t* extra_params) const {
  return create_xfer_req(*this, operation, local_descs.getType(), Rows::of(local_descs),
                         remote_descs.getType(), Rows::of(remote_descs), remote_agent, req_hndl,
                         extra_params);
}
