#include "transports/cuda/backend.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "memory/shared_memory.h"

namespace towline::cuda {

namespace {

constexpr size_t kMostAllocations = kMostParts;
constexpr uint64_t kLogRefusalsNs = 10 * kSecondNs;  // a peer may ask again and again
constexpr uint64_t kPoolMark = UINT32_MAX;           // the low half of a pool's key; no region's is so large

// Describes the address if it is not GPU memory.
[[noreturn]] void refuse_pointer(const towline_region_ref& region, uint64_t address,
                                 const Allocation& found) {
  switch (found.where) {
    case Where::kUnknown:
      fail(Status::kInvalidArgument,
           "cuda: no GPU memory at {:#x} (region {:#x} of {} bytes): it was freed, or it is host memory, "
           "which is "
           "registered as dram",
           address, region.address, region.bytes);
    case Where::kHost:
      fail(Status::kInvalidArgument, "cuda: {:#x} is pinned host memory: register it as dram", address);
    case Where::kManaged:
      fail(Status::kUnsupported, "cuda: {:#x} is managed memory, which moves: use plain GPU memory", address);
    case Where::kGpu:
      break;
  }
  fail(Status::kInvalidArgument, "cuda: {:#x} lies on GPU {}, and was registered as on GPU {}", address,
       found.gpu, region.device);
}

// The backends of this process's agents: among themselves they ask without a socket. Process-wide, since no
// smaller unit knows the other agents of this address space.
std::mutex neighbours_mutex;
std::map<std::pair<uint64_t, uint64_t>, Backend*> neighbours;  // by incarnation

// Puts the reason why it failed into the caller's text.
template <class Work>
int32_t or_reason(std::span<char> reason, Work&& work) noexcept {
  const auto refuse = [&](Status status, const char* text) {
    (void)std::snprintf(reason.data(), reason.size(), "%s", text);
    return static_cast<int32_t>(status);
  };
  try {
    work();
    return TOWLINE_OK;
  } catch (const core::Error& error) {
    return refuse(error.code(), error.message().c_str());
  } catch (const std::exception& error) {
    return refuse(Status::kInternal, error.what());
  }
}

}  // namespace

Backend::Backend(const plugin::Host& host, Device& device) try
    : BackendBase(host),
      device_(device),
      settings_(Settings::read(host)),
      mappings_(device),
      team_(settings_.host_threads),
      workers_(host.worker_count()) {
  carrier_.emplace(this->host(), static_cast<CarrierOwner&>(*this), shm_carrier(this->host()));
  service_.emplace(this->host(), [this](const Ask& ask) { return find_part(ask); });
  const std::lock_guard lock(neighbours_mutex);
  const towline_identity& self = this->host().self();
  neighbours[{self.incarnation[0], self.incarnation[1]}] = this;
} catch (const core::Error& error) {
  throw plugin::Failure(error.code(), error.message());
}

Backend::~Backend() {
  {
    const std::lock_guard lock(neighbours_mutex);
    const towline_identity& self = host().self();
    neighbours.erase({self.incarnation[0], self.incarnation[1]});
  }
  service_.reset();
  carrier_.reset();
}

// ---- memory

std::vector<Allocation> Backend::allocations_of(const towline_region_ref& region) const {
  std::vector<Allocation> result;
  const uint64_t end = region.address + region.bytes;
  for (uint64_t at = region.address; at < end;) {
    Allocation allocation = device_.look_up(at);
    if (allocation.where != Where::kGpu || allocation.gpu != region.device || allocation.bytes == 0)
      refuse_pointer(region, at, allocation);
    at = allocation.address + allocation.bytes;
    result.push_back(std::move(allocation));
    if (result.size() > kMostAllocations)
      fail(Status::kLimitExceeded, "cuda: the region lies in more than {} allocations", kMostAllocations);
  }
  return result;
}

// Returns the GPU. Throws Error where the region is not on it.
uint32_t Backend::check_vram(const towline_region_ref& region) {
  device_.start();
  device_.check_gpu(region.device);
  (void)allocations_of(region);
  return static_cast<uint32_t>(region.device);
}

int32_t Backend::landing_check(const towline_region_ref& region) noexcept try {
  (void)check_vram(region);
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return host().refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return host().refuse(Status::kInternal, error.what());
}

int32_t Backend::landing_open(uint64_t gpu, uint32_t slots, uint32_t slot_bytes, Landing*& landing) noexcept
    try {
  if (slots == 0 || slots > kDetourSlots || slot_bytes == 0 || slot_bytes > kDetourSlotBytes)
    fail(Status::kInvalidArgument, "cuda: staging memory of {} slots of {} bytes: at most {} of {}", slots,
         slot_bytes, kDetourSlots, kDetourSlotBytes);
  device_.start();
  auto made = std::make_unique<Landing>(host(), device_, settings_, landing_budget_, unpackers_, gpu, slots,
                                        slot_bytes);
  made->ready(gpu);
  landing = made.release();
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return refuse_landing(error.code(), error.message(), gpu);
} catch (const std::exception& error) {
  return refuse_landing(Status::kInternal, error.what(), gpu);
}

// Where a peer's frame has asked for it, that peer is told a status alone: what happened is said on this side.
int32_t Backend::refuse_landing(Status status, const std::string& text, uint64_t gpu) noexcept {
  try {
    const std::string what = fmt::format("a connection gets no staging memory for GPU {}: {}", gpu, text);
    const uint64_t now_ns = host().now_ns();
    const std::lock_guard lock(refusals_mutex_);
    if (refusals_ == 0 || now_ns - refusal_logged_ns_ >= kLogRefusalsNs) {
      refusal_logged_ns_ = now_ns;
      host().log(1, what);
    }
    ++refusals_;
    last_refusal_ = what;
  } catch (const std::exception&) {
    // Without memory for the sentence there is still the status.
  }
  return host().refuse(status, text);
}

Backend::LandingRefusals Backend::landing_refusals() {
  const std::lock_guard lock(refusals_mutex_);
  return {refusals_, last_refusal_};
}

// As with copies of host memory, no GPU is taken unasked.
uint32_t Backend::gpu_for_pool(const std::string& gpu) const {
  const std::vector<Gpu>& gpus = device_.gpus();
  for (uint32_t i = 0; i < gpus.size(); ++i) {
    const bool wanted = !gpu.empty()         ? gpus[i].pci_address == gpu
                        : settings_.gpu >= 0 ? static_cast<uint32_t>(settings_.gpu) == i
                                             : device_.in_use(i);
    if (wanted) return i;
  }
  if (!gpu.empty()) fail(Status::kNotFound, "cuda: this process sees no GPU at {}", gpu);
  if (settings_.gpu >= 0) fail(Status::kNotFound, "cuda: there is no GPU {} (cuda.gpu)", settings_.gpu);
  fail(Status::kUnsupported,
       "cuda: this process uses no GPU, and none is taken unasked (cuda.gpu names one)");
}

int32_t Backend::landing_open_pool(const std::string& gpu, uint64_t bytes, int given, LandingPool*& pool,
                                   std::span<char> reason) noexcept {
  return or_reason(reason, [&] {
    if (bytes == 0) fail(Status::kInvalidArgument, "cuda: a pool of no bytes");
    device_.start();
    pool = std::make_unique<LandingPool>(device_, gpu_for_pool(gpu), bytes, given).release();
  });
}

int32_t Backend::landing_export(const towline_region_ref& region, towline_landing_export& memory,
                                std::span<char> reason) noexcept {
  return or_reason(reason, [&] {
    const uint32_t gpu = check_vram(region);
    DmaExport made = device_.export_memory(gpu, region.address, region.bytes);
    memory = {.dma_buf = made.dma_buf.release(), .reserved = 0, .offset = made.offset, .gpu = {}};
    const std::string& place = device_.gpus()[gpu].pci_address;
    std::copy_n(place.data(), std::min(place.size(), sizeof memory.gpu - 1), memory.gpu);
  });
}

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void* token,
                     size_t* token_bytes) try {
  *token_bytes = 0;
  auto region = std::make_unique<Region>();
  region->args = args;
  if (args.region.kind == TOWLINE_MEMORY_VRAM) {
    region->gpu = check_vram(args.region);
    device_.load(region->gpu);
    const std::vector<uint8_t> bytes = encode(Token{device_.gpus()[region->gpu].uuid});
    std::memcpy(token, bytes.data(), bytes.size());
    *token_bytes = bytes.size();
  } else if (args.region.kind == TOWLINE_MEMORY_DRAM) {
    region->host = std::make_shared<HostPin>(device_, settings_.pin, args.region.address, args.region.bytes);
  } else {
    return host().refuse(Status::kUnsupported, "cuda: only vram and dram are moved");
  }
  *registration = reinterpret_cast<towline_registration*>(region.get());
  const std::lock_guard lock(regions_mutex_);
  if (region->vram()) ++vram_[region->gpu];
  regions_[args.region.key] = std::move(region);
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return host().refuse(error.code(), error.message());
}

void Backend::remove(towline_registration* registration) noexcept {
  const auto* region = reinterpret_cast<const Region*>(registration);
  if (region->host != nullptr) region->host->close();
  const std::lock_guard lock(regions_mutex_);
  if (region->vram()) --vram_[region->gpu];
  regions_.erase(region->args.region.key);
}

bool Backend::neighbour_has(const uint64_t incarnation[2], uint64_t key) {
  const std::lock_guard lock(neighbours_mutex);
  const auto found = neighbours.find({incarnation[0], incarnation[1]});
  return found != neighbours.end() && found->second->may_be_reached(key);
}

bool Backend::may_be_reached(uint64_t key) {
  const std::lock_guard lock(regions_mutex_);
  return region_to_reach(key) != nullptr;
}

const Region* Backend::region_to_reach(uint64_t key) const {
  const auto found = regions_.find(key);
  return found != regions_.end() && host().may_be_reached(found->second->args.region) ? found->second.get()
                                                                                      : nullptr;
}

// Looks the memory up again: allocators may have put other memory at the addresses since it was registered.
Answer Backend::find_part(const Ask& ask) {
  const std::lock_guard lock(regions_mutex_);
  if (const auto pool = pools_.find(ask.key); pool != pools_.end()) return give_pool(pool->second);
  const Region* const region = region_to_reach(ask.key);
  if (region == nullptr) fail(Status::kStale, "it has deregistered the region");
  const towline_region_args& args = region->args;
  if ((args.region.flags & TOWLINE_REGION_GUARDED) != 0)
    fail(Status::kPermissionDenied, "the region is guarded");
  Answer answer;
  answer.region_address = args.region.address;
  answer.region_bytes = args.region.bytes;
  if (region->vram()) {
    const std::vector<Allocation> allocations = allocations_of(args.region);
    if (ask.index >= allocations.size()) fail(Status::kStale, "its memory was remapped meanwhile");
    answer.parts = static_cast<uint32_t>(allocations.size());
    answer.part = device_.share(allocations[ask.index]);
    return answer;
  }
  if (args.fd < 0)
    fail(Status::kUnsupported,
         "its dram is private to it: allocate it with towline::Memory, or register it with `share`");
  answer.parts = 1;
  answer.part.sharing = Sharing::kHostFile;
  answer.part.address = args.region.address;
  answer.part.bytes = args.region.bytes;
  answer.part.file_offset = args.fd_offset;
  answer.part.fd = duplicate_fd(args.fd);
  return answer;
}

Answer Backend::give_pool(const Shared& pool) {
  Answer answer;
  answer.parts = 1;
  answer.region_address = pool.address;
  answer.region_bytes = pool.bytes;
  answer.part.sharing = pool.sharing;
  answer.part.address = pool.address;
  answer.part.bytes = pool.bytes;
  answer.part.file_offset = pool.file_offset;
  answer.part.fd = duplicate_fd(pool.fd.get());
  return answer;
}

PoolName Backend::share_pool(void* address, uint64_t bytes) {
  std::string why;
  const SharedRange range = find_shared_range(address, bytes, why);
  if (range.file == nullptr) fail(Status::kInternal, "cuda: memory to share has no descriptor: {}", why);
  Shared pool;
  pool.sharing = Sharing::kHostFile;
  pool.address = reinterpret_cast<uint64_t>(address);
  pool.bytes = bytes;
  pool.file_offset = range.offset;
  pool.fd = duplicate_fd(range.file->fd());
  const std::lock_guard lock(regions_mutex_);
  const uint64_t key = ++last_pool_ << 32 | kPoolMark;
  pools_[key] = std::move(pool);
  return {key, reinterpret_cast<uint64_t>(address), bytes};
}

void Backend::unshare_pool(uint64_t key) noexcept {
  const std::lock_guard lock(regions_mutex_);
  pools_.erase(key);
}

std::optional<uint32_t> Backend::gpu_of(uint64_t key) {
  const std::lock_guard lock(regions_mutex_);
  const auto found = regions_.find(key);
  if (found == regions_.end()) fail(Status::kStale, "cuda: the region with key {:#x} is gone", key);
  if (!found->second->vram()) return std::nullopt;
  return found->second->gpu;
}

bool Backend::no_path_to(const Uuid& gpu) {
  const std::lock_guard lock(regions_mutex_);
  bool any = false;
  const auto reaches = [&](uint32_t ours) {
    any = true;
    return device_.may_reach(ours, gpu);
  };
  if (settings_.gpu >= 0 && reaches(static_cast<uint32_t>(settings_.gpu))) return false;
  for (const auto& [ours, regions] : vram_)
    if (regions != 0 && reaches(ours)) return false;
  return any;
}

// ---- connections

bool Backend::same_process(const towline_identity& peer) const noexcept {
  const towline_identity& self = host().self();
  return std::equal(std::begin(peer.host), std::end(peer.host), self.host) && peer.pid == self.pid &&
         peer.pid_namespace == self.pid_namespace && peer.start_time == self.start_time;
}

int32_t Backend::address(void* address, size_t* bytes) { return carrier_->address(address, bytes); }

int32_t Backend::probe(const towline_identity& peer, const void* address, size_t bytes) {
  return carrier_->probe(peer, address, bytes);
}

int32_t Backend::connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* peer, Connection** out) {
  const Scope scope{*this, worker};
  auto* const connection =
      workers_[worker].connections.add(std::make_unique<Connection>(*this, worker, identity, peer));
  const int32_t status = connection->connect(identity, address, bytes, deadline_ns);
  if (status != TOWLINE_OK)
    release(connection);
  else
    *out = connection;
  return status;
}

int32_t Backend::on_accepted(uint32_t worker, towline_connection* carried, const towline_identity& identity,
                             CarrierEvents** events) {
  const Scope scope{*this, worker};
  auto* const connection =
      workers_[worker].connections.add(std::make_unique<Connection>(*this, worker, identity, nullptr));
  const int32_t status = connection->accept(carried, identity);
  if (status < 0)
    release(connection);
  else
    *events = connection->events();  // the core's until disconnect()
  return status;
}

uint32_t Backend::progress(uint32_t worker, uint64_t now_ns) noexcept {
  const Scope scope{*this, worker};
  uint32_t done = carrier_->progress(worker, now_ns);
  Worker& mine = workers_[worker];
  done += mine.connections.each([now_ns](Connection& connection) { return connection.progress(now_ns); });
  return done;
}

bool Backend::arm(uint32_t worker) noexcept {
  return workers_[worker].connections.any([](const Connection& connection) { return connection.busy(); }) ||
         carrier_->arm(worker);
}

}  // namespace towline::cuda
