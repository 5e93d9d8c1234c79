#include "transports/cuda/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <new>

#include "base/clock.h"
#include "base/error.h"
#include "base/short_text.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/begun_copies.h"

namespace towline::cuda {

namespace {

// Stores to host memory at the link's rate stall all other memory traffic: this number of blocks stays below
// that rate.
constexpr uint32_t kFenced = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;

towline_connection* handle(Connection* connection) {
  return reinterpret_cast<towline_connection*>(connection);
}

// That way: another may lead there.
bool leads_nowhere(const core::Error& error) noexcept {
  const Status code = error.code();
  return code == Status::kUnsupported || code == Status::kIo || code == Status::kOutOfMemory;
}

bool is_to_host(const towline_plan& plan, bool read) noexcept {
  const auto all = [](const towline_list& list, uint32_t kind) {
    return std::all_of(list.regions, list.regions + list.region_count,
                       [kind](const towline_region_ref& region) { return region.kind == kind; });
  };
  return all(read ? *plan.remote : *plan.local, TOWLINE_MEMORY_VRAM) &&
         all(read ? *plan.local : *plan.remote, TOWLINE_MEMORY_DRAM);
}

const Region* region_of(const towline_registration* registration) noexcept {
  return reinterpret_cast<const Region*>(registration);
}

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, const towline_identity& identity, void* peer)
    : backend_(backend),
      worker_(worker),
      peer_(peer),
      incarnation_{identity.incarnation[0], identity.incarnation[1]},
      same_process_(backend.same_process(identity)) {}

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

// ---- coming and going

int32_t Connection::connect(const towline_identity& identity, const void* address, size_t bytes,
                            uint64_t deadline_ns) {
  return backend_.carrier().connect(worker_, identity, address, bytes, deadline_ns, *this, &carried_);
}

int32_t Connection::accept(towline_connection* carried, const towline_identity& identity) {
  carried_ = carried;
  const int32_t status = host().accepted(worker_, handle(this), identity, &peer_);
  up_ = status >= 0;
  return status;
}

void Connection::on_message(const void* data, size_t bytes) {
  const Backend::Scope scope{backend_, worker_};
  if (disconnected_) return;
  const std::span<const uint8_t> message{static_cast<const uint8_t*>(data), bytes};
  if (!is_detour_message(message)) return host().message(peer_, data, bytes);
  try {
    if (is_move(message)) {
      if (owner_ == nullptr) owner_ = std::make_unique<DetourOwner>(backend_, *this, incarnation_);
      return owner_->on_move(message);
    }
    Moved moved;
    if (decode(message, moved) && detour_ != nullptr) detour_->on_moved(moved);
  } catch (const std::exception& error) {  // the core disconnects
    on_event(TOWLINE_CONNECTION_DOWN, TOWLINE_OUT_OF_MEMORY, error.what());
  }
}

void Connection::on_event(uint32_t event, int32_t status, const char* text) {
  const Backend::Scope scope{backend_, worker_};
  up_ = event == TOWLINE_CONNECTION_UP;
  if (!up_) {
    lost_->store(static_cast<int32_t>(Status::kPeerLost));
    call_off(Status::kPeerLost);
  }
  if (!disconnected_) host().connection_event(peer_, event, static_cast<Status>(status), text);
}

void Connection::disconnect() noexcept {
  if (disconnected_) return;
  disconnected_ = true;
  const Backend::Scope scope{backend_, worker_};
  up_ = false;
  call_off(Status::kClosed);
  const bool ended = wait_within(kQuietWithinNs, [this] {
    (void)progress(monotonic_now_ns());
    return settled();
  });
  if (!ended) give_up(Status::kClosed);
  if (carried_ != nullptr) backend_.carrier().disconnect(carried_);
  carried_ = nullptr;
  backend_.release(this);
}

// The carrier's number of it: the owner ends both together.
uint64_t Connection::connection_id() const noexcept { return backend_.carrier().connection_id(carried_); }

int32_t Connection::send(const void* message, size_t bytes) noexcept {
  if (carried_ == nullptr) return static_cast<int32_t>(Status::kPeerLost);
  if (is_detour_message({static_cast<const uint8_t*>(message), bytes}))
    return static_cast<int32_t>(Status::kInvalidArgument);
  return backend_.carrier().send(carried_, message, bytes);
}

int32_t Connection::send_beside(std::span<const uint8_t> message) noexcept {
  if (carried_ == nullptr) return static_cast<int32_t>(Status::kPeerLost);
  return backend_.carrier().send(carried_, message.data(), message.size());
}

void Connection::served(uint32_t direction, uint64_t bytes) noexcept {
  host().served(peer_, direction, bytes);
}

std::string Connection::describe() const {
  std::string queues;
  for (const auto& [which, queue] : queues_)
    queues += (queues.empty() ? "" : ", ") + describe_queue(which, queue);
  const std::string detour = detour_ == nullptr ? "null" : detour_->describe(detour_why_);
  return fmt::format(
      R"({{"transport": "cuda", "queues": [{}], "imports": {}, "mappings": {}, "under_way": {}, )"
      R"("through_host_memory": {}, "carrier": {}}})",
      queues, imports_, backend_.mappings().live(), jobs_.size(), detour,
      backend_.carrier().describe(carried_));
}

// ---- regions

// Why only the path through host memory is possible, as far as known before a plan names this side's GPU.
std::string Connection::needs_detour(const Import& import) const {
  if (backend_.settings().detour == DetourUse::kNever) return {};
  if (backend_.settings().detour == DetourUse::kAlways) return "asked for";
  if ((import.region.flags & TOWLINE_REGION_GUARDED) != 0) return "guarded";
  if (import.region.kind != TOWLINE_MEMORY_VRAM || !backend_.no_path_to(import.gpu)) return {};
  return fmt::format("no P2P to {:.16}", uuid_text(import.gpu));
}

// kAgain: not yet.
Status Connection::ask_owner(Import& import, std::string& text) {
  if (import.request == nullptr) import.request = std::make_unique<MemoryRequest>(host(), worker_);
  if (!import.started) {
    const Status status = import.request->start(incarnation_, import.region.key, text);
    if (status != Status::kOk) return status;
    import.started = true;
  }
  const Status status = import.request->step(import.region, text);
  if (status == Status::kOk)
    import.parts = std::make_shared<const std::vector<Shared>>(std::move(import.request->parts()));
  if (status != Status::kAgain) import.request.reset();
  // Memory that can't be given out is its owner's to copy.
  if (status != Status::kUnsupported || backend_.settings().detour == DetourUse::kNever) return status;
  import.detour = "the owner can't share it";
  return Status::kOk;
}

int32_t Connection::import(const towline_region_args& args, const void* token, size_t token_bytes,
                           towline_import** out, char how[64]) {
  if (!up_) return host().refuse(Status::kPeerLost, "cuda: the connection is down");
  auto* import = reinterpret_cast<Import*>(*out);
  if (import == nullptr) {
    const bool vram = args.region.kind == TOWLINE_MEMORY_VRAM;
    if (!vram && args.region.kind != TOWLINE_MEMORY_DRAM)
      return host().refuse(Status::kUnsupported, "cuda: only vram and dram are moved");
    const auto decoded = decode_token({static_cast<const uint8_t*>(token), token_bytes});
    if (vram && !decoded)
      return host().refuse(Status::kProtocol, "cuda: the peer does not say which GPU the region is on");
    backend_.device().start();
    auto made = std::make_unique<Import>();
    made->region = args.region;
    if (vram) made->gpu = decoded->gpu;
    made->detour = needs_detour(*made);
    if ((args.region.flags & TOWLINE_REGION_GUARDED) != 0 && made->detour.empty())
      return host().refuse(Status::kPermissionDenied, "cuda: the region is guarded, and a GPU asks no owner");
    made->direct = same_process_ && backend_.settings().direct;
    ++imports_;
    import = made.release();
    *out = reinterpret_cast<towline_import*>(import);
  }
  std::string text;
  Status status = Status::kOk;
  if (import->direct && !Backend::neighbour_has(incarnation_, import->region.key)) {
    status = Status::kStale;
    text = "the owner has deregistered the region";
  }
  if (!import->direct && import->detour.empty()) status = ask_owner(*import, text);
  if (status == Status::kAgain) return TOWLINE_AGAIN;
  if (status != Status::kOk) {
    unimport(*out);
    *out = nullptr;
    return host().refuse(status, "cuda: " + text);
  }
  if (!import->detour.empty()) {
    std::snprintf(how, 64, "through host memory: %s", import->detour.c_str());
    return TOWLINE_OK;
  }
  const char* const way = import->direct                                           ? "this process"
                          : import->parts->front().sharing == Sharing::kDescriptor ? "VMM descriptor"
                          : import->parts->front().sharing == Sharing::kHandle     ? "cudaIpc"
                                                                                   : "pinned memfd";
  if (import->region.kind == TOWLINE_MEMORY_VRAM)
    std::snprintf(how, 64, "%s, %.16s", way, uuid_text(import->gpu).c_str());
  else
    std::snprintf(how, 64, "%s, dram", way);
  return TOWLINE_OK;
}

void Connection::unimport(towline_import* import) noexcept {
  delete reinterpret_cast<Import*>(import);
  --imports_;
}

// ---- plans

std::optional<uint32_t> Connection::local_gpu(const towline_prepare_args& args) {
  const towline_list& local = *args.plan->local;
  std::optional<uint32_t> chosen;
  for (uint64_t i = 0; i < local.region_count; ++i) {
    if (local.regions[i].kind != TOWLINE_MEMORY_VRAM) continue;
    if (chosen && *chosen != local.regions[i].device)
      fail(Status::kUnsupported, "cuda: this agent's list lies on GPUs {} and {}: make one transfer for each",
           *chosen, local.regions[i].device);
    chosen = static_cast<uint32_t>(local.regions[i].device);
  }
  return chosen;
}

// The GPU of our own memory; if that is host memory, the one that the settings name, the peer's if we use it
// already, or one we use. So a WRITE is pushed and a READ pulled, and between processes there is no choice:
// the process that starts a transfer has no context on the other's GPU.
//
// If both GPUs are this process's there is a choice. It always falls the same way, because of what plain kernels measure
// on two H200 (bench/gpu --ways; GB/s over random pages, the blocks of either way as set by default):
//
//                    pushed by 24 blocks    pulled by 12
//     32 KiB x    1           3.1 (10.5 us)      3.2 (10.4 us)
//     32 KiB x   16          46.6 (11.3 us)     43.7 (12.0 us)
//     32 KiB x  512         290                292
//      4 KiB x 16384        332                344
//     32 KiB x 4096         341                353
//      1 MiB x  128         339                355
//
// One way alone pulling gains 4 % at most, and nothing below 16 MiB; every GPU to every other at once it
// loses 5 % (317 of the 333 GB/s that pushing has, by 24 blocks each), and streams of our GPU's would no
// longer be those of the GPU that copies. Host memory goes at the same speed by either GPU, within 2 % from 4
// MiB on.
uint32_t Connection::choose_gpu(const towline_prepare_args& args) const {
  Device& device = backend_.device();
  const towline_list& remote = *args.plan->remote;
  if (const std::optional<uint32_t> ours = local_gpu(args)) return *ours;
  const auto count = static_cast<uint32_t>(device.gpus().size());
  const int32_t wanted = backend_.settings().gpu;
  if (wanted >= 0 && static_cast<uint32_t>(wanted) >= count)
    fail(Status::kInvalidArgument, "cuda: there is no GPU {} (cuda.gpu): this process sees {}", wanted,
         count);
  if (wanted >= 0) return static_cast<uint32_t>(wanted);
  for (uint64_t i = 0; i < remote.region_count; ++i) {
    const Uuid& theirs = reinterpret_cast<const Import*>(args.remote[i])->gpu;
    for (uint32_t gpu = 0; gpu < count; ++gpu)
      if (device.gpus()[gpu].uuid == theirs && device.in_use(gpu)) return gpu;
  }
  for (uint32_t gpu = 0; gpu < count; ++gpu)
    if (device.in_use(gpu)) return gpu;
  fail(Status::kUnsupported,
       "cuda: this process uses no GPU that could move the bytes, and none is taken unasked (cuda.gpu names "
       "one)");
}

Connection::OneQueue& Connection::queue_of(const QueueName& name) {
  if (const auto found = queues_.find(name); found != queues_.end()) return found->second;
  const Settings& settings = backend_.settings();
  OneQueue made;
  made.queue =
      backend_.device().make_queue(name.gpu, settings.after_default_stream, settings.reserve, name.urgent);
  made.free_slots.reserve(CopyQueue::kSlots);
  for (uint32_t slot = CopyQueue::kSlots; slot-- > 0;) made.free_slots.push_back(slot);
  jobs_.reserve(jobs_.capacity() + CopyQueue::kSlots);
  free_.reserve(free_.capacity() + CopyQueue::kSlots);
  return queues_.emplace(name, std::move(made)).first->second;
}

void Connection::check_local(const towline_prepare_args& args) const {
  const towline_list& local = *args.plan->local;
  for (uint64_t i = 0; i < local.region_count; ++i) {
    const towline_region_ref& region = local.regions[i];
    if (region_of(args.local[i]) == nullptr)
      fail(Status::kUnsupported, "cuda: a region of this agent was not registered with this transport");
    if (region.kind == TOWLINE_MEMORY_VRAM && backend_.device().look_up(region.address).where != Where::kGpu)
      fail(Status::kStale,
           "cuda: there is no GPU memory at {:#x} any more (freed, unmapped or put to sleep since it was "
           "registered)",
           region.address);
  }
}

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) try {
  if (!up_) return host().refuse(Status::kPeerLost, "cuda: the connection is down");
  auto prepared = std::make_unique<Prepared>();
  prepared->connection = handle(this);
  prepared->plan = args.plan;
  prepared->device = &backend_.device();
  prepared->lost = lost_;
  prepared->read = args.op == TOWLINE_READ;
  check_local(args);
  const towline_list& remote = *args.plan->remote;
  std::string why;
  for (uint64_t i = 0; i < remote.region_count && why.empty(); ++i)
    why = reinterpret_cast<const Import*>(args.remote[i])->detour;
  if (why.empty()) {
    try {
      if (!map_remote(args, choose_gpu(args))) return TOWLINE_AGAIN;
      prepare_here(args, *prepared);
    } catch (const core::Error& error) {
      if (!leads_nowhere(error) || backend_.settings().detour == DetourUse::kNever) throw;
      why = error.message();
      prepared->held.clear();
      prepared->pinned.clear();
      prepared->local_hosts.clear();
      prepared->queue.reset();
    }
  }
  if (!why.empty()) prepare_detour(args, *prepared, why);
  *out = prepared.release();
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return host().refuse(error.code(), error.message());
}

// Finds the way to our own memory. False: not now, since host memory is not pinned, and why. Throws Error: nor does the
// pool lead there.
bool Connection::reach_local(const towline_prepare_args& args, Prepared& prepared,
                             std::vector<uint64_t>& deltas, std::string& why) {
  const towline_list& local = *args.plan->local;
  const Settings& settings = backend_.settings();
  const Use use = prepared.read ? Use::kWrite : Use::kRead;
  // The pool takes host memory alone, to and from a peer's GPU.
  const bool pool = settings.detour != DetourUse::kNever && !local_gpu(args) &&
                    reinterpret_cast<const Import*>(args.remote[0])->region.kind == TOWLINE_MEMORY_VRAM;
  for (uint64_t i = 0; i < local.region_count; ++i) {
    uint64_t& delta = deltas.emplace_back(0);
    if (local.regions[i].kind == TOWLINE_MEMORY_VRAM) continue;
    prepared.host_memory = true;
    const std::shared_ptr<HostPin>& host = region_of(args.local[i])->host;
    try {
      std::shared_ptr<const Pinned> pinned = host->find(use);
      const bool later = pool && settings.pin == PinUse::kAuto && !host->small();
      if (pinned == nullptr && !later) pinned = host->now(use);
      if (pinned == nullptr) {
        why = "host memory is pinned from its second post on";
        continue;
      }
      delta = pinned->delta();
      prepared.pinned.push_back(std::move(pinned));
    } catch (const core::Error& error) {
      if (!pool || !leads_nowhere(error)) throw;
      why = error.message();
      return false;
    }
  }
  if (why.empty()) return true;
  for (uint64_t i = 0; i < local.region_count; ++i)
    prepared.local_hosts.push_back(region_of(args.local[i])->host);
  return false;
}

// Throws Error.
void Connection::make_work(Prepared& prepared, bool urgent, std::vector<uint64_t> local_deltas) {
  const Settings& settings = backend_.settings();
  const Ways ways{local_deltas.data(), prepared.remote_deltas.data(), prepared.read};
  const std::shared_ptr<CopyQueue> queue = queue_of(queue_name(prepared, urgent)).queue;
  auto work = std::make_unique<WorkList>(*prepared.plan, ways, queue);
  const bool by_engine = work->one_piece() && prepared.plan->bytes >= settings.copy_engine_bytes;
  prepared.copy_engine = false;
  prepared.gathered.reset();
  prepared.queue = queue;
  prepared.urgent = urgent;
  prepared.list_there = !work->has_list();
  prepared.blocks = prepared.host_memory ? settings.host_blocks
                    : prepared.read      ? settings.read_blocks
                                         : settings.blocks;
  const uint32_t reserved = queue->reserved_sms();
  if (reserved != 0) prepared.blocks = std::min(prepared.blocks, reserved);
  prepared.to_host = is_to_host(*prepared.plan, prepared.read);
  prepared.work = std::move(work);
  prepared.local_deltas = std::move(local_deltas);
  if (by_engine)
    find_cuts(prepared);
  else if (prepared.to_host && settings.beside != Beside::kCopy)
    make_gathered(prepared, ways);
  if (settings.beside == Beside::kModel && prepared.host_memory)
    prepared.blocks = std::min(prepared.blocks, prepared.to_host ? kPacedBlocks : kPullBlocks);
}

// Makes the plan ready for the queue of urgent work, or for the other. One that streams may still come to stays as it is.
// Throws Error.
void Connection::take_queue(Prepared& prepared, bool urgent) {
  if (prepared.urgent == urgent || prepared.work == nullptr) return;
  if (prepared.valve != nullptr || !prepared.captures.empty()) return;
  make_work(prepared, urgent, prepared.local_deltas);
}

// By a GPU of this process alone. Throws Error.
void Connection::prepare_here(const towline_prepare_args& args, Prepared& prepared) {
  prepared.gpu = choose_gpu(args);
  prepared.queue = queue_of(queue_name(prepared, false)).queue;
  // Also that of urgent posts: the driver may wait for kernels that run before it makes a stream, and they for such a post.
  (void)queue_of(queue_name(prepared, true));
  reach_remote(args, prepared);
  std::vector<uint64_t> local_deltas;
  std::string why;
  if (reach_local(args, prepared, local_deltas, why))
    return make_work(prepared, false, std::move(local_deltas));
  prepare_detour(args, prepared, why);
  DetourPlan& detour = *prepared.detour;
  detour.far = detour_->copier(prepared.gpu, prepared.read);
  detour.far_deltas = prepared.remote_deltas;
  detour.far_pool = detour_->address_for(prepared.gpu);
}

// The NUMA node of the GPU that will copy: ours, or the owner's if we see it.
std::optional<uint32_t> Connection::node_near(const towline_prepare_args& args,
                                              std::optional<uint32_t> gpu) const {
  const std::vector<Gpu>& gpus = backend_.device().gpus();
  if (gpu) return gpus[*gpu].host_node;
  for (uint64_t i = 0; i < args.plan->remote->region_count; ++i)
    for (const Gpu& seen : gpus)
      if (seen.uuid == reinterpret_cast<const Import*>(args.remote[i])->gpu) return seen.host_node;
  return std::nullopt;
}

// Ready for it, and says why.
void Connection::take_detour(std::optional<uint32_t> node, const std::string& why) {
  if (detour_ == nullptr) detour_ = std::make_unique<Detour>(backend_, *this, node);
  if (detour_why_ == why) return;
  detour_why_ = why;
  host().log(2, "bytes go through host memory: " + why);
}

// `why` no GPU of ours does it in one step. With the owner's help, unless `far` is set. Throws Error.
void Connection::prepare_detour(const towline_prepare_args& args, Prepared& prepared,
                                const std::string& why) {
  const towline_plan& plan = *args.plan;
  const std::optional<uint32_t> gpu = local_gpu(args);
  const auto is_vram = [](const towline_region_ref& region) { return region.kind == TOWLINE_MEMORY_VRAM; };
  const bool vram =
      gpu || std::any_of(plan.remote->regions, plan.remote->regions + plan.remote->region_count, is_vram);
  if (!vram) fail(Status::kUnsupported, "cuda: only GPU memory goes through host memory ({})", why);
  const bool reached = prepared.queue != nullptr;  // the peer's memory, by our GPU
  take_detour(node_near(args, reached ? prepared.gpu : gpu), why);
  auto detour = std::make_unique<DetourPlan>();
  detour->plan = args.plan;
  detour->read = prepared.read;
  detour->copier = detour_->copier(gpu, detour->read);
  detour->pool = detour_->address_for(gpu);
  for (uint64_t i = 0; i < plan.local->region_count; ++i) {
    const towline_region_ref& region = plan.local->regions[i];
    uint64_t& delta = detour->local_deltas.emplace_back(0);
    if (is_vram(region) || !gpu) continue;
    std::shared_ptr<const Pinned> pinned =
        region_of(args.local[i])->host->now(detour->read ? Use::kWrite : Use::kRead);
    delta = pinned->delta();
    prepared.pinned.push_back(std::move(pinned));
  }
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    const towline_region_ref& region = reinterpret_cast<const Import*>(args.remote[i])->region;
    detour->targets.push_back({region.key, is_vram(region) ? region.device + 1 : 0});
  }
  prepared.detour = std::move(detour);
}

void Connection::unprepare(towline_prepared* prepared) noexcept { delete static_cast<Prepared*>(prepared); }

// For a plan that uses the pool: true once its memory is pinned; from then on it is copied directly.
bool Connection::pinned_meanwhile(Prepared& prepared, PinNow now) noexcept try {
  const auto& hosts = prepared.local_hosts;
  const auto settled = [](const auto& host) { return host->settled(); };
  if (hosts.empty() || (now == PinNow::kNo && !std::all_of(hosts.begin(), hosts.end(), settled)))
    return false;
  const Use use = prepared.read ? Use::kWrite : Use::kRead;
  std::vector<uint64_t> deltas;
  std::vector<std::shared_ptr<const Pinned>> held = prepared.pinned;
  for (const auto& host : hosts) {
    std::shared_ptr<const Pinned> pinned = now == PinNow::kYes ? host->now(use) : host->find(use);
    if (pinned == nullptr) return false;
    deltas.push_back(pinned->delta());
    held.push_back(std::move(pinned));
  }
  prepared.pinned.swap(held);
  make_work(prepared, prepared.urgent, std::move(deltas));
  return true;
} catch (const std::exception& error) {
  prepared.local_hosts.clear();
  take_detour(std::nullopt, error.what());
  return false;
}

// ---- parts

int32_t Connection::submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
  auto& mine = *static_cast<Prepared*>(prepared);
  return reinterpret_cast<Connection*>(mine.connection)->begin(mine, args);
}

int32_t Connection::begin(Prepared& prepared, const towline_submit_args& args) noexcept try {
  if (!up_) return static_cast<int32_t>(Status::kPeerLost);
  if (prepared.work == nullptr && (args.begin == args.end || !pinned_meanwhile(prepared, PinNow::kNo))) {
    if (args.begin == 0 && args.end != 0)  // once a post
      for (const auto& host : prepared.local_hosts)
        if (host->missed()) backend_.pin_thread().pin(host);
    return detour_->begin(*prepared.detour, args);
  }
  take_queue(prepared, (args.flags & TOWLINE_SUBMIT_URGENT) != 0);
  OneQueue& queue = queue_of(queue_name(prepared, prepared.urgent));
  if (queue.free_slots.empty()) return TOWLINE_AGAIN;
  Job& job = make_job(prepared, args);
  job.slot = queue.free_slots.back();
  job.value = ++queue.last_value;
  Code code = 0;
  if (!job.moved) choose_way(prepared, queue, job);
  if (job.moved) {
    // Nothing but its message.
  } else if (job.gathered != nullptr) {
    feed(job);  // refused in the middle, it ends as others do: bytes may be on their way
  } else if (prepared.copy_engine) {
    code = copy_by_engine(prepared, job);
  } else {
    const CopyJob work = prepared.work->job(args.begin, args.end);
    const uint32_t blocks = job.paced ? kPacedBlocks : prepared.blocks;
    code = job.queue->launch(work, useful_blocks(work, blocks), job.slot, job.value);
  }
  if (code != 0) return refuse_code("starting a copy failed: ", code);
  queue.free_slots.pop_back();
  prepared.last_on_stream = false;
  job_begun();
  return TOWLINE_IN_PROGRESS;
} catch (const core::Error& error) {
  return host().refuse(error.code(), error.message());
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

Connection::Job& Connection::make_job(Prepared& prepared, const towline_submit_args& args) {
  if (free_.empty()) {
    const size_t jobs = std::bit_ceil(jobs_.size() + 1);
    jobs_.reserve(jobs);  // for job_begun(),
    free_.reserve(jobs);  // and the end of them all
    free_.push_back(std::make_unique<Job>());
  }
  Job& job = *free_.back();
  const auto* message = static_cast<const uint8_t*>(args.message);
  job.message.assign(message, message + args.message_bytes);
  job.prepared = &prepared;
  job.cookie = args.cookie;
  job.begin = args.begin;
  job.end = args.end;
  job.queue = prepared.queue.get();
  job.valve = nullptr;
  job.asked_ns = 0;
  job.status = Status::kOk;
  job.code = 0;
  job.moved = args.begin == args.end;
  job.gathered = nullptr;
  job.scatter = nullptr;
  job.chunks = 0;
  job.next = args.begin;
  job.queued = job.timed = job.paced = false;
  job.way = HostWay::kDirect;
  return job;
}

void Connection::job_begun() noexcept {
  if (!free_.back()->moved) ++moving_;
  jobs_.push_back(std::move(free_.back()));
  free_.pop_back();
  host().wake(worker_);  // the GPU wakes no thread
}

int32_t Connection::refuse_code(const char* what, Code code) noexcept try {
  return host().refuse(Status::kIo, std::string("cuda: ") + what + backend_.device().code_text(code));
} catch (const std::bad_alloc&) {
  return host().refuse(Status::kIo, what);
}

// A copy that was begun can't be called back; its end comes soon, and is told as a cancel. One that waits in
// a stream does not begin any more.
void Connection::cancel(uint64_t cookie) noexcept {
  if (detour_ != nullptr) detour_->cancel(cookie);
  for (const auto& job : jobs_) {
    if (job->cookie != cookie || job->status != Status::kOk) continue;
    job->status = Status::kCancelled;
    if (job->valve != nullptr) job->valve->close();
  }
}

bool Connection::over(const Job& job) noexcept {
  if (job.scatter != nullptr) return job.queued && job.chunks == 0;
  if (job.valve == nullptr) return job.queue->flag(job.slot).load(std::memory_order_acquire) == job.value;
  return job.valve->ended() >= job.value || (job.status != Status::kOk && job.valve->quiet());
}

void Connection::look_at(Job& job, uint64_t now_ns) noexcept {
  if (job.gathered != nullptr && !job.queued) feed(job);
  if (over(job)) {
    job.moved = true;
    if (job.timed && job.status == Status::kOk) note_time(job, now_ns);
    return;
  }
  if (job.asked_ns == 0) job.asked_ns = now_ns;
  if (now_ns < job.asked_ns + kAskAfterNs) return;
  job.asked_ns = now_ns;
  const Code code = job.queue->state();
  if (code == CopyQueue::kBusy || code == 0) return;
  if (job.scatter != nullptr) job.scatter->forget();
  job.moved = true;
  job.status = Status::kIo;
  job.code = code;
  static constexpr const char* kFailed =
      "a copy failed, and with it every later one of this process on that GPU";
  try {
    host().log(0, ShortText("{}: {}", kFailed, backend_.device().code_text(code)));
  } catch (const std::bad_alloc&) {
    host().log(0, kFailed);
  }
}

// True when nothing is left to do but to complete it.
bool Connection::finish(Job& job) noexcept {
  if (job.status != Status::kOk || job.message.empty()) return true;
  const int32_t sent = send(job.message.data(), job.message.size());
  if (sent == TOWLINE_AGAIN) return false;
  if (sent < 0) job.status = static_cast<Status>(sent);
  return true;
}

uint32_t Connection::progress(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  if (owner_ != nullptr) done += owner_->progress(now_ns);
  if (detour_ != nullptr) done += detour_->progress(now_ns);
  for (auto& [which, queue] : queues_)
    if (queue.scatter != nullptr) done += queue.scatter->progress(*queue.queue);
  for (size_t i = 0; i < jobs_.size();) {
    Job& job = *jobs_[i];
    if (!job.moved) {
      look_at(job, now_ns);
      if (job.moved) {
        --moving_;
        ++done;
      }
    }
    if (!job.moved || !finish(job)) {
      ++i;
      continue;
    }
    std::unique_ptr<Job> ended = std::move(jobs_[i]);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    complete(*ended);  // may submit or disconnect
    free_.push_back(std::move(ended));
    ++done;
  }
  return done;
}

void Connection::complete(Job& job) noexcept {
  for (auto& [which, queue] : queues_)
    if (job.valve == nullptr && queue.queue.get() == job.queue) queue.free_slots.push_back(job.slot);
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job.status);
  result.vendor_code = job.code;
  result.fences = job.moved ? kFenced : 0;
  const bool moved = job.status == Status::kOk;
  result.bytes = moved ? job.end - job.begin : 0;
  if (!moved) {
    result.failed_begin = job.begin;
    result.failed_end = job.end;
  }
  host().complete(job.cookie, result);
}

// Nothing begins any more, and whatever waits in a stream moves nothing. Copies that a GPU has begun run on.
void Connection::call_off(Status status) noexcept {
  if (owner_ != nullptr) owner_->call_off();
  if (detour_ != nullptr) detour_->call_off(status);
  for (const auto& job : jobs_) {
    if (job->status == Status::kOk) job->status = status;
    if (!job->moved && job->valve != nullptr) job->valve->close();
  }
}

bool Connection::settled() const noexcept {
  return jobs_.empty() && (detour_ == nullptr || detour_->settled()) &&
         (owner_ == nullptr || owner_->settled());
}

int32_t Connection::settle() noexcept {
  call_off(Status::kClosed);
  return settled() ? TOWLINE_OK : TOWLINE_AGAIN;
}

int32_t Connection::settle_prepared(towline_prepared* prepared) noexcept {
  return static_cast<Prepared*>(prepared)->settle() ? TOWLINE_OK : TOWLINE_AGAIN;
}

// The rest ends without a fence, and everything that a copy may still reach stays for good: a GPU that finds
// memory unmapped breaks the application's context.
void Connection::give_up(Status status) noexcept {
  host().log(0, "a copy that was begun does not end: what it reaches stays mapped for good");
  if (owner_ != nullptr && !owner_->settled()) keep_for_good(owner_.release());
  if (detour_ != nullptr && !detour_->settled()) {
    keep_for_good(detour_.get());
    detour_.release()->give_up(status);
  }
  for (auto& [which, queue] : queues_)
    if (queue.scatter != nullptr) queue.scatter->forget();
  while (!jobs_.empty()) {
    std::unique_ptr<Job> job = std::move(jobs_.back());
    jobs_.pop_back();
    if (!job->moved) job->prepared->given_up = true;
    complete(*job);
  }
  keep_value_for_good(std::move(queues_));
  moving_ = 0;
}

}  // namespace towline::cuda
