#include "transports/cuda/landing.h"

#include <algorithm>

#include "base/error.h"

namespace towline::cuda {

namespace {

std::optional<uint32_t> node_of(Device& device, uint64_t gpu) {
  device.check_gpu(gpu);
  return device.gpus()[gpu].host_node;
}

Landing& from(towline_landing* landing) noexcept { return *reinterpret_cast<Landing*>(landing); }
LandingPool& from(towline_landing_pool* pool) noexcept { return *reinterpret_cast<LandingPool*>(pool); }

}  // namespace

LandingBudget::Share::Share(LandingBudget& budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {
  uint64_t left = budget.left_.load(std::memory_order_relaxed);
  do {
    if (left < bytes)
      fail(Status::kAgain,
           "cuda: connections have all the staging memory that tuning.cuda.landing_bytes allows ({} bytes "
           "are left, this one needs {}): raise it, or connect to fewer peers at once",
           left, bytes);
  } while (!budget.left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
}

Landing::Landing(const plugin::Host& host, Device& device, const Settings& settings, LandingBudget& budget,
                 Unpackers& unpackers, uint64_t gpu, uint32_t slots, uint32_t slot_bytes)
    : host_(host),
      device_(device),
      settings_(settings),
      unpackers_(unpackers),
      after_default_stream_(settings.after_default_stream),
      blocks_(settings.host_blocks),
      reserve_(settings.reserve),
      model_first_(settings.beside == Beside::kModel && !settings.after_default_stream),
      slots_(slots),
      slot_bytes_(slot_bytes),
      share_(budget, 2 * uint64_t{slots} * slot_bytes),
      memory_(device, node_of(device, gpu), 2 * uint64_t{slots} * slot_bytes) {}

Landing::~Landing() {
  for (const UnderWay& frame : under_way_[TOWLINE_LANDING_SCATTER])
    if (frame.unpacker != nullptr) frame.unpacker->leave(frame.batch);
}

void* Landing::memory(uint32_t way) const noexcept {
  return static_cast<uint8_t*>(memory_.address()) + way * uint64_t{slots_} * slot_bytes_;
}

PieceCopier& Landing::copier(uint64_t gpu, uint32_t way) {
  auto& mine = copiers_[{gpu, way}];
  if (mine == nullptr) mine = make_copier(static_cast<uint32_t>(gpu), way);
  return *mine;
}

std::unique_ptr<PieceCopier> Landing::make_copier(uint32_t gpu, uint32_t way) {
  const uint32_t reserved = reserve_.any() && !after_default_stream_ ? device_.reserve(gpu, reserve_).sms : 0;
  const uint32_t blocks = reserved != 0 ? std::min(blocks_, reserved) : blocks_;
  if (way == TOWLINE_LANDING_GATHER && model_first_) {
    try {
      return PieceCopier::make_gathering(device_, gpu, std::min(blocks, kGatherBlocks), reserve_);
    } catch (const core::Error& error) {
      host_.log(1, "copies to the host go by the kernel, paced: " + error.message());
      return std::make_unique<PieceCopier>(device_, gpu, after_default_stream_, kPacedBlocks, reserve_);
    }
  }
  return std::make_unique<PieceCopier>(device_, gpu, after_default_stream_, blocks, reserve_);
}

void Landing::ready(uint64_t gpu) {
  device_.check_gpu(gpu);
  (void)copier(gpu, TOWLINE_LANDING_GATHER);
  (void)copier(gpu, TOWLINE_LANDING_SCATTER);
  if (!pools_.empty()) make_unpackers();
}

// The memory is looked up anew, each allocation once: allocators may have put other memory under the addresses.
Code Landing::begin(uint32_t way, uint32_t slot, uint64_t gpu, const towline_landing_piece* pieces,
                    uint32_t count) {
  if (way > TOWLINE_LANDING_SCATTER || slot >= slots_ || count > TOWLINE_LANDING_MOST_PIECES)
    fail(Status::kInvalidArgument, "cuda: a copy of {} pieces with slot {} of way {}", count, slot, way);
  PieceCopier& copier = this->copier(gpu, way);
  uint64_t staging = reinterpret_cast<uint64_t>(memory(way)) + slot * uint64_t{slot_bytes_} + memory_.delta();
  const uint64_t staging_end = staging + slot_bytes_;
  Allocation found;
  copier.clear(slot);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& [address, bytes] = pieces[i];
    if (bytes > staging_end - staging)
      fail(Status::kInvalidArgument, "cuda: pieces of more than {} bytes", slot_bytes_);
    check_piece(gpu, pieces[i], found);
    if (way == TOWLINE_LANDING_GATHER)
      copier.add(slot, staging, address, bytes);
    else
      copier.add(slot, address, staging, bytes);
    staging += bytes;
  }
  under_way_[way][slot] = {&copier, nullptr, 0};
  return copier.start(slot);
}

// Stale unless all of it is memory of that GPU. `found`: the allocation looked up last.
void Landing::check_piece(uint64_t gpu, const towline_landing_piece& piece, Allocation& found) const {
  const uint64_t end = piece.address + piece.bytes;
  for (uint64_t at = piece.address; at < end; at = found.address + found.bytes) {
    if (at >= found.address && at - found.address < found.bytes) continue;
    found = device_.locate(at);
    if (found.where != Where::kGpu || found.gpu != gpu || found.bytes == 0)
      fail(Status::kStale,
           "cuda: there is no memory of GPU {} at {:#x} any more (freed, unmapped or put to sleep)", gpu, at);
  }
}

void Landing::reach(void* address, uint64_t bytes) {
  if (pools_.size() >= TOWLINE_LANDING_MOST_POOLS)
    fail(Status::kLimitExceeded, "cuda: a connection has {} pools of fragments already", pools_.size());
  const auto begin = reinterpret_cast<uint64_t>(address);
  for (const Pool& pool : pools_)
    if (pool.address == begin && pool.bytes == bytes) return;
  auto pinned =
      device_.pinned_ranges().take(device_, begin, bytes, Use::kRead);  // other connections have it, too
  const uint64_t delta = pinned->delta();
  make_unpackers();
  pools_.push_back({begin, bytes, delta, std::move(pinned), std::nullopt});
}

void Landing::reach(const LandingPool& pool) {
  for (const Pool& known : pools_)
    if (known.gpu && known.address == pool.address()) return;
  if (pools_.size() >= TOWLINE_LANDING_MOST_POOLS)
    fail(Status::kLimitExceeded, "cuda: a connection has {} pools of fragments already", pools_.size());
  make_unpackers();
  pools_.push_back({pool.address(), pool.bytes(), 0, nullptr, pool.gpu()});
}

// Fragments come from a peer's packets by way of a transport: what lies elsewhere must not reach a kernel.
Landing::Reach Landing::reach_of(uint64_t gpu, const towline_landing_piece& fragment) const {
  for (const Pool& pool : pools_) {
    const Reach reach = {pool.address, pool.bytes, pool.delta, !pool.gpu};
    if (pool.gpu.value_or(gpu) == gpu && reach.holds(fragment)) return reach;
  }
  const Reach staging = {reinterpret_cast<uint64_t>(memory_.address()), memory_.bytes(), memory_.delta(),
                         true};
  if (staging.holds(fragment)) return staging;
  fail(Status::kInvalidArgument, "cuda: a fragment of {} bytes at {:#x} lies in no pool of this connection",
       fragment.bytes, fragment.address);
}

Unpacker* Landing::unpacker(uint64_t gpu) const noexcept {
  const auto mine = shared_unpackers_.find(gpu);
  return mine == shared_unpackers_.end() ? nullptr : mine->second.get();
}

void Landing::make_unpackers() {
  for (const auto& [key, copier] : copiers_)
    if (auto& mine = shared_unpackers_[key.first]; mine == nullptr)
      mine = unpackers_.take(device_, static_cast<uint32_t>(key.first), settings_);
}

// Both lists are walked at once; each stretch that is one piece of both becomes a piece of the kernel's list. True: some
// fragments lie in host memory.
template <class Add>
bool Landing::join(uint64_t gpu, std::span<const towline_landing_piece> fragments,
                   std::span<const towline_landing_piece> pieces, Allocation& found, Add add) const {
  const towline_landing_piece* next = fragments.data();
  const towline_landing_piece* const end = next + fragments.size();
  Reach reach;
  bool from_host = false;
  uint64_t from = 0;
  uint64_t left = 0;  // of the fragment under way
  uint64_t room = slot_bytes_;
  for (const towline_landing_piece& piece : pieces) {
    check_piece(gpu, piece, found);
    for (uint64_t done = 0; done < piece.bytes;) {
      while (left == 0) {
        if (next == end) fail(Status::kInvalidArgument, "cuda: fewer fragments than pieces");
        if (!reach.holds(*next)) {
          reach = reach_of(gpu, *next);
          from_host |= reach.in_host_memory;
        }
        from = next->address + reach.delta;
        left = next->bytes;
        ++next;
      }
      const uint64_t here = std::min(left, piece.bytes - done);
      if (here > room) fail(Status::kInvalidArgument, "cuda: pieces of more than {} bytes", slot_bytes_);
      add(piece.address + done, from, here);
      done += here;
      from += here;
      left -= here;
      room -= here;
    }
  }
  if (left != 0 || next != end) fail(Status::kInvalidArgument, "cuda: more fragments than pieces");
  return from_host;
}

Code Landing::unpack(uint32_t slot, uint64_t gpu, std::span<const towline_landing_piece> fragments,
                     std::span<const towline_landing_piece> pieces) {
  if (slot >= slots_ || fragments.size() > TOWLINE_LANDING_MOST_PIECES ||
      pieces.size() > TOWLINE_LANDING_MOST_PIECES)
    fail(Status::kInvalidArgument, "cuda: {} fragments to {} pieces with slot {}", fragments.size(),
         pieces.size(), slot);
  UnderWay& under_way = under_way_[TOWLINE_LANDING_SCATTER][slot];
  if (Unpacker* const unpacker = this->unpacker(gpu); unpacker != nullptr) {
    Unpacker::Frame frame(*unpacker);
    if (frame.has_room()) {
      PieceWriter written = frame.begin();
      const bool from_host =
          join(gpu, fragments, pieces, frame.found(),
               [&](uint64_t to, uint64_t from, uint64_t bytes) { written.add(to, from, bytes); });
      under_way = {nullptr, unpacker, frame.end(written, from_host)};
      return 0;
    }
  }
  PieceCopier& copier = this->copier(gpu, TOWLINE_LANDING_SCATTER);
  copier.clear(slot);
  Allocation found;
  (void)join(gpu, fragments, pieces, found,
             [&](uint64_t to, uint64_t from, uint64_t bytes) { copier.add(slot, to, from, bytes); });
  under_way = {&copier, nullptr, 0};
  return copier.start(slot);
}

Code Landing::poll(uint32_t way, uint32_t slot, uint64_t now_ns) noexcept {
  UnderWay& under_way = under_way_[way][slot];
  if (under_way.unpacker == nullptr) return under_way.copier->look(slot, now_ns);
  const Code code = under_way.unpacker->look(under_way.batch, now_ns);
  if (code != CopyQueue::kBusy) under_way = {};
  return code;
}

// ---- the table

void landing_close(towline_landing* landing) noexcept { delete &from(landing); }

int32_t landing_ready(towline_landing* landing, uint64_t device) noexcept try {
  from(landing).ready(device);
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

int32_t landing_begin(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t device,
                      const towline_landing_piece* pieces, uint32_t count, int32_t* vendor_code) noexcept
    try {
  *vendor_code = from(landing).begin(way, slot, device, pieces, count);
  return *vendor_code == 0 ? TOWLINE_OK : TOWLINE_IO;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

int32_t landing_reach(towline_landing* landing, void* address, uint64_t bytes) noexcept try {
  from(landing).reach(address, bytes);
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

int32_t landing_reach_pool(towline_landing* landing, towline_landing_pool* pool) noexcept try {
  from(landing).reach(from(pool));
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

void landing_close_pool(towline_landing_pool* pool) noexcept { delete &from(pool); }

int32_t landing_read_pool(towline_landing_pool* pool, const towline_landing_piece* pieces, uint32_t count,
                          void* to, int32_t* vendor_code) noexcept try {
  *vendor_code = from(pool).read({pieces, count}, static_cast<uint8_t*>(to));
  return *vendor_code == 0 ? TOWLINE_OK : TOWLINE_IO;
} catch (const core::Error& error) {
  return static_cast<int32_t>(error.code());
} catch (const std::exception&) {
  return TOWLINE_INTERNAL;
}

int32_t landing_unpack(towline_landing* landing, uint32_t slot, uint64_t device,
                       const towline_landing_piece* fragments, uint32_t fragment_count,
                       const towline_landing_piece* pieces, uint32_t piece_count,
                       int32_t* vendor_code) noexcept try {
  *vendor_code = from(landing).unpack(slot, device, {fragments, fragment_count}, {pieces, piece_count});
  return *vendor_code == 0 ? TOWLINE_OK : TOWLINE_IO;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

int32_t landing_poll(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t now_ns,
                     int32_t* vendor_code) noexcept {
  const Code code = from(landing).poll(way, slot, now_ns);
  if (code == CopyQueue::kBusy) return TOWLINE_IN_PROGRESS;
  *vendor_code = code;
  return code == 0 ? TOWLINE_OK : TOWLINE_IO;
}

}  // namespace towline::cuda
