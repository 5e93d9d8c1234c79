#include "spin/world.h"
#include "support/open_to_peers.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

namespace towline::spin {
namespace {

std::atomic<uint64_t> seed_for_people{0};

uint64_t word_at(uint64_t seed, uint64_t at) {
  const uint64_t mixed = (seed ^ (at * 0xbf58476d1ce4e5b9ULL)) * 0x9e3779b97f4a7c15ULL;
  return mixed ^ (mixed >> 29);
}

std::string draw_settings(Random& random) {
  std::string text = "log.level = \"off\"\n";
  if (random.chance(0.3)) text += "tuning.memory.framed = true\n";
  if (random.chance(0.3)) text += "tcp.checksum = true\n";
  if (random.chance(0.5)) text += "tuning.tcp.sockets = 4\n";
  if (random.chance(0.3)) text += "peer.heartbeat = \"5ms\"\npeer.suspect = \"50ms\"\n";
  if (random.chance(0.2)) text += "tuning.connection.wait = \"1ms\"\n";
#if defined(__SANITIZE_THREAD__)
  // liburing opens and closes a ring's descriptor unseen by ThreadSanitizer, which takes the next file of that number for it.
  static constexpr std::array<const char*, 3> kEngines = {"aio", "threads", "pread"};
#else
  static constexpr std::array<const char*, 5> kEngines = {"auto", "uring", "aio", "threads", "pread"};
#endif
  text += std::string("tuning.posix.engine = \"") + kEngines[random.below(kEngines.size())] + "\"\n";
  if (random.chance(0.2))
    text +=
        "faults = \"seed=" + std::to_string(random.below(1000)) + ",short=0.2,delay=0.01:200us,cut=1e-3\"\n";
  return text;
}

std::string draw_backends(Random& random) {
  static constexpr std::array<const char*, 5> kLists = {"memory,shm,tcp", "shm,tcp", "tcp", "tcp,memory",
                                                        "shm"};
  const std::string list = kLists[random.below(kLists.size())];
  return random.chance(0.7) ? list + ",posix" : list;
}

}  // namespace

void give_up(const std::string& what) {
  std::fprintf(stderr, "spin: seed %llu: %s\n", static_cast<unsigned long long>(seed_for_people.load()),
               what.c_str());
  std::abort();
}

#if defined(__clang__) || defined(__GNUC__)
__attribute__((no_sanitize("thread")))
#endif
void stamp(std::byte* data, uint64_t bytes, uint64_t seed, uint64_t at) {
  auto* words = reinterpret_cast<uint64_t*>(data);
  for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = word_at(seed, at / 8 + i);
}

#if defined(__clang__) || defined(__GNUC__)
__attribute__((no_sanitize("thread")))
#endif
bool stamped(const std::byte* data, uint64_t bytes, uint64_t seed, uint64_t at) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  for (uint64_t i = 0; i < bytes / 8; ++i)
    if (words[i] != word_at(seed, at / 8 + i)) return false;
  return true;
}

Memory::Memory(uint32_t areas, bool shared)
    : areas_(areas), spoilt_(std::make_unique<std::atomic<bool>[]>(areas)) {
  if (shared) {
    if (towline_memory_allocate(bytes(), 0, &shared_) != TOWLINE_OK) give_up(towline_last_error());
    data_ = static_cast<std::byte*>(towline_memory_address(shared_));
  } else {
    data_ = static_cast<std::byte*>(std::aligned_alloc(4096, bytes()));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 0, bytes());
  }
}

Memory::~Memory() {
  if (shared_ == nullptr)
    std::free(data_);
  else if (towline_memory_free(shared_) != TOWLINE_OK)
    give_up(towline_last_error());
}

bool Memory::mostly_spoilt() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < areas_; ++i) count += spoilt(i) ? 1 : 0;
  return 2 * count > areas_;
}

bool Once::first(uint64_t number) {
  Shard& shard = shards_[number % shards_.size()];
  const std::lock_guard lock(shard.mutex);
  return shard.seen.insert(number).second;
}

World::World(const Options& options) : options_(options) {
  seed_for_people = options.seed;
  folder_ = (std::filesystem::temp_directory_path() / "towline-spin-XXXXXX").string();
  if (::mkdtemp(folder_.data()) == nullptr) give_up("no folder " + folder_);
  Random random(options.seed * 7919);
  for (uint32_t i = 0; i < options.agents; ++i) {
    places_.push_back(std::make_unique<Place>());
    places_.back()->memory = std::make_shared<Memory>(options.threads * kAreasOfThread, i % 2 == 0);
    open(*places_.back(), random);
  }
}

World::~World() {
  for (const auto& place : places_) close(*place);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  for (const auto& tally : tallies_) {
    const int64_t accepted = tally->accepted;
    if (tally->pulled > accepted || (tally->called_back && tally->called != accepted))
      give_up(std::to_string(accepted) + " posts accepted, " + std::to_string(tally->called) +
              " ends called back and " + std::to_string(tally->pulled) + " pulled");
  }
}

int32_t World::answered(int32_t status) {
  ++calls;
  if (status == TOWLINE_INTERNAL) give_up(std::string("an internal error: ") + towline_last_error());
  return status;
}

Tally* World::new_tally(bool called_back) {
  const std::lock_guard lock(mutex_);
  tallies_.push_back(std::make_unique<Tally>());
  tallies_.back()->world = this;
  tallies_.back()->called_back = called_back;
  return tallies_.back().get();
}

void World::drive() {
  for (const auto& place : places_) {
    if (place->closing) continue;
    const std::shared_lock lock(place->mutex, std::try_to_lock);
    if (lock.owns_lock() && place->agent != nullptr) (void)towline_agent_progress(place->agent);
  }
}

void World::open(Place& place, Random& random) {
  towline_agent_options_t options{};
  options.struct_size = sizeof options;
  const std::string settings = draw_settings(random);
  const std::string backends = options_.backends.empty() ? draw_backends(random) : options_.backends;
  options.listen = "127.0.0.1:0";
  options.workers = static_cast<uint32_t>(1 + random.below(3));
  options.progress = random.chance(0.2) ? TOWLINE_PROGRESS_CALLER : TOWLINE_PROGRESS_HOSTED;
  options.config = settings.c_str();
  options.backends = backends.c_str();
  options.default_timeout_ns = 2'000'000'000;
  // Names come again, so that peers are replaced by their next incarnation.
  const std::string name = "agent-" + std::to_string(random.below(options_.agents + 1));
  if (towline_agent_create(name.c_str(), &options, &place.agent) != TOWLINE_OK) give_up(towline_last_error());
  char address[256] = {};
  if (towline_agent_address(place.agent, address, sizeof address, nullptr) != TOWLINE_OK)
    give_up(towline_last_error());
  place.address = address;
  ++place.generation;
  ++agents_made;
  towline_region_t* region = nullptr;
  if (towline_region_register(place.agent, place.memory->data(), place.memory->bytes(),
                              testing::open_to_peers(), &region) != TOWLINE_OK)
    give_up(towline_last_error());
  place.region = region;
}

void World::deregister(towline_region_t* region) {
  int32_t status = TOWLINE_NOT_YET;
  for (uint64_t waited = 0; status == TOWLINE_NOT_YET && waited < kPatienceNs; waited += 10'000'000) {
    status = towline_region_deregister(region, 10'000'000);
    drive();
  }
  if (status != TOWLINE_OK) give_up(std::string("a region stays: ") + towline_last_error());
}

void World::close(Place& place) {
  towline_region_t* const region = place.region.exchange(nullptr);
  if (towline_agent_destroy(place.agent) != TOWLINE_OK) give_up(towline_last_error());
  place.agent = nullptr;
  if (region != nullptr) deregister(region);
}

void World::remake(uint32_t index, Random& random) {
  Place& place = *places_[index];
  if (place.closing.exchange(true)) return;
  {
    const std::unique_lock lock(place.mutex);
    close(place);
    if (place.memory->mostly_spoilt()) {
      const std::lock_guard guard(mutex_);
      spoilt_.push_back(place.memory);
      place.memory = std::make_shared<Memory>(options_.threads * kAreasOfThread, random.chance(0.5));
    }
    open(place, random);
  }
  place.closing = false;
}

void World::register_anew(uint32_t index) {
  Place& place = *places_[index];
  towline_region_t* const old = place.region.exchange(nullptr);
  if (old == nullptr) return;
  deregister(old);
  const std::shared_lock lock(place.mutex);
  towline_region_t* region = nullptr;
  if (towline_region_register(place.agent, place.memory->data(), place.memory->bytes(),
                              testing::open_to_peers(), &region) != TOWLINE_OK)
    give_up(towline_last_error());
  towline_region_t* none = nullptr;
  if (!place.region.compare_exchange_strong(none, region)) deregister(region);
}

void World::notice_came(const void* data, std::size_t bytes) {
  uint64_t number = 0;
  if (bytes < sizeof number) give_up("a notice of " + std::to_string(bytes) + " bytes, which nobody sent");
  std::memcpy(&number, data, sizeof number);
  if (number == 0 || number >= next_number_ || !notices_.first(number))
    give_up("notice " + std::to_string(number) + " came twice, or was never sent");
}

}  // namespace towline::spin
