#include "bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <towline_nixl.h>

namespace nixlbench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned char kOfInitiator = 0xbb;
constexpr unsigned char kOfTarget = 0xaa;
constexpr const char* kInitiator = "initiator";
constexpr uint64_t kWaitNs = 60'000'000'000;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void need(nixl_status_t status, const char* what) {
  if (status != NIXL_SUCCESS)
    throw std::runtime_error(fmt::format("{}: {}", what, towline::nixl::last_error()));
}

nixlBackendH* make_backend(nixlAgent& agent, const Flags& flags) {
  nixl_b_params_t parameters;
  if (flags.backend == "OBJ") {
    parameters = {{"access_key", flags.obj_access_key},
                  {"secret_key", flags.obj_secret_key},
                  {"session_token", flags.obj_session_token},
                  {"bucket", flags.obj_bucket_name},
                  {"scheme", flags.obj_scheme},
                  {"region", flags.obj_region},
                  {"use_virtual_addressing", flags.obj_use_virtual_addressing ? "true" : "false"},
                  {"endpoint_override", flags.obj_endpoint_override},
                  {"req_checksum", flags.obj_req_checksum},
                  {"ca_bundle", flags.obj_ca_bundle}};
  } else if (flags.backend == "AZURE_BLOB") {
    parameters = {{"account_url", flags.azure_blob_account_url},
                  {"container_name", flags.azure_blob_container_name},
                  {"connection_string", flags.azure_blob_connection_string}};
  }
  std::erase_if(parameters, [](const auto& entry) { return entry.second.empty(); });
  nixlBackendH* backend = nullptr;
  need(agent.createBackend(flags.backend, parameters, backend),
       fmt::format("--backend {}", flags.backend).c_str());
  return backend;
}

}  // namespace

void need_backend(const Flags& flags) {
  nixlAgent agent("probe", nixlAgentConfig{});
  (void)make_backend(agent, flags);
}

double Samples::average() const {
  return us.empty() ? 0 : std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
}

double Samples::p99() {
  if (us.empty()) return 0;
  const auto at = us.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(us.size() - 1) * 0.99);
  std::nth_element(us.begin(), at, us.end());
  return *at;
}

// Files, one for each of num_files, which threads share; or objects, one for each block.
struct Bench::Storage {
  std::vector<int> files;
  std::vector<std::string> paths;
  bool objects = false;
  uint64_t blocks = 0;  // objects of a thread
  nixl_reg_dlist_t registered{FILE_SEG};

  ~Storage() {
    for (const int file : files) ::close(file);
  }
};

Bench::Bench(const Flags& flags, const Meeting* meeting)
    : flags_(flags), meeting_(meeting), share_(flags.total_buffer_size / flags.num_threads) {
  const int huge = flags.use_hugepages ? MAP_HUGETLB : 0;
  void* const memory = ::mmap(nullptr, flags.total_buffer_size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | huge, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error(fmt::format("--total_buffer_size: {} bytes can't be had: {}",
                                         flags.total_buffer_size, std::strerror(errno)));
  memory_ = static_cast<char*>(memory);
  agent_ = std::make_unique<nixlAgent>(initiates() ? kInitiator : "target", nixlAgentConfig{});
  backend_ = make_backend(*agent_, flags);
  nixl_reg_dlist_t own(DRAM_SEG);
  own.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(memory_), flags.total_buffer_size, 0, ""));
  need(agent_->registerMem(own), "registering memory");
  if (flags.is_storage()) {
    storage_ = std::make_unique<Storage>();
    storage_->objects = flags.moves_objects();
  }
  if (meeting_ != nullptr) exchange();
}

Bench::~Bench() {
  agent_.reset();
  if (memory_ != nullptr) ::munmap(memory_, flags_.total_buffer_size);
}

// Each tells the other where its memory is, and its metadata.
void Bench::exchange() {
  nixl_blob_t mine;
  need(agent_->getLocalMD(mine), "metadata");
  meeting_->send(fmt::format("{} ", reinterpret_cast<uintptr_t>(memory_)) + mine);
  const std::string theirs = meeting_->receive();
  const size_t space = theirs.find(' ');
  if (space == std::string::npos)
    throw std::runtime_error("the other process is no nixlbench of this version");
  remote_ = std::stoull(theirs);
  need(agent_->loadRemoteMD(theirs.substr(space + 1), remote_name_), "the other process's metadata");
}

// ---- memory and storage of a step

uint64_t Bench::offset_of(uint64_t index, uint64_t block) const {
  const uint64_t offset = index * block % share_;
  return offset + block > share_ ? 0 : offset;
}

void Bench::fill(uint64_t block, uint64_t count, unsigned char value) const {
  for (uint64_t thread = 0; thread < flags_.num_threads; ++thread) {
    for (uint64_t i = 0; i < count; ++i)
      std::memset(memory_ + thread * share_ + offset_of(i, block), value, block);
  }
}

bool Bench::holds(uint64_t block, uint64_t count, unsigned char value) const {
  for (uint64_t thread = 0; thread < flags_.num_threads; ++thread) {
    for (uint64_t i = 0; i < count; ++i) {
      const char* const begin = memory_ + thread * share_ + offset_of(i, block);
      const bool same =
          static_cast<unsigned char>(*begin) == value && std::memcmp(begin, begin + 1, block - 1) == 0;
      if (!same) return false;
    }
  }
  return true;
}

// Opens and registers what the step moves to or from.
void Bench::prepare_storage(uint64_t block, uint64_t count) {
  Storage& storage = *storage_;
  if (!storage.objects && !storage.files.empty()) return;
  if (storage.objects) {
    storage.blocks = count;
    if (storage.registered.descCount() != 0)
      need(agent_->deregisterMem(storage.registered), "deregistering objects");
    storage.registered = nixl_reg_dlist_t(OBJ_SEG);
    for (uint64_t i = 0; i < flags_.num_threads * count; ++i)
      storage.registered.addDesc(nixlBlobDesc(0, block, i, fmt::format("nixlbench_{}", i)));
    need(agent_->registerMem(storage.registered), "registering objects");
    return;
  }
  std::stringstream names(flags_.filenames);
  for (std::string name; std::getline(names, name, ',');) storage.paths.push_back(name);
  const std::string folder = flags_.filepath.empty() ? "." : flags_.filepath;
  while (storage.paths.size() < flags_.num_files)
    storage.paths.push_back(fmt::format("{}/nixlbench_{}_{}", folder, ::getpid(), storage.paths.size()));
  for (const std::string& path : storage.paths) {
    const int file = ::open(
        path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (flags_.storage_enable_direct ? O_DIRECT : 0), 0644);
    if (file < 0) throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(errno)));
    storage.files.push_back(file);
    storage.registered.addDesc(nixlBlobDesc(0, flags_.total_buffer_size, static_cast<uint64_t>(file), ""));
  }
  need(agent_->registerMem(storage.registered), "registering files");
}

// ---- requests

nixlXferReqH* Bench::make_request(nixl_xfer_op_t operation, uint64_t thread, uint64_t block, uint64_t batch,
                                  uint64_t slot) const {
  nixl_xfer_dlist_t here(DRAM_SEG);
  nixl_xfer_dlist_t there(storage_ == nullptr ? DRAM_SEG : storage_->objects ? OBJ_SEG : FILE_SEG);
  for (uint64_t i = slot * batch; i < (slot + 1) * batch; ++i) {
    const uint64_t at = thread * share_ + offset_of(i, block);
    here.emplace(reinterpret_cast<uintptr_t>(memory_) + at, block, uint64_t{0});
    if (storage_ == nullptr) {
      there.emplace(remote_ + at, block, uint64_t{0});
    } else if (storage_->objects) {
      there.emplace(uintptr_t{0}, block, thread * storage_->blocks + i);
    } else {
      there.emplace(at, block, static_cast<uint64_t>(storage_->files[thread % storage_->files.size()]));
    }
  }
  nixl_opt_args_t args;
  args.backends = {backend_};
  const std::string remote = storage_ == nullptr ? remote_name_ : kInitiator;  // storage is this agent's own
  nixlXferReqH* request = nullptr;
  if (!flags_.prepared_xfer) {
    need(agent_->createXferReq(operation, here, there, remote, request, &args), "making a request");
    return request;
  }
  nixlDlistH* local_list = nullptr;
  nixlDlistH* remote_list = nullptr;
  need(agent_->prepXferDlist(NIXL_INIT_AGENT, here, local_list, &args), "preparing a list");
  need(agent_->prepXferDlist(remote, there, remote_list, &args), "preparing a list");
  std::vector<int> all(batch);
  std::iota(all.begin(), all.end(), 0);
  need(agent_->makeXferReq(operation, local_list, all, remote_list, all, request, &args), "making a request");
  need(agent_->releasedDlistH(local_list), "releasing a list");
  need(agent_->releasedDlistH(remote_list), "releasing a list");
  return request;
}

void Bench::await(nixlXferReqH* request) const {
  nixl_status_t status = agent_->getXferStatus(request);
  // A short while without sleeping, as NIXL's own does all the time.
  for (int i = 0; i < 1000 && status == NIXL_IN_PROG; ++i) status = agent_->getXferStatus(request);
  if (status == NIXL_IN_PROG) status = towline::nixl::wait_xfer(*agent_, request, kWaitNs);
  // What failed is in the log; last_error() is of calls alone.
  if (status == NIXL_IN_PROG)
    throw std::runtime_error(fmt::format("a transfer has not ended within {} s", kWaitNs / 1'000'000'000));
  if (status != NIXL_SUCCESS)
    throw std::runtime_error(fmt::format("a transfer ended with {}", nixlEnumStrings::statusStr(status)));
}

void Bench::measure_thread(uint64_t thread, uint64_t block, uint64_t batch, Stats& stats) const {
  const uint64_t depth = flags_.pipeline_depth;
  const nixl_xfer_op_t operation = flags_.writes() ? NIXL_WRITE : NIXL_READ;
  std::vector<nixlXferReqH*> requests(depth, nullptr);
  std::vector<Clock::time_point> posted(depth);
  const auto prepare = [&](uint64_t slot, bool counts) {
    const auto begin = Clock::now();
    requests[slot] = make_request(operation, thread, block, batch, slot);
    if (counts) stats.prepare.us.push_back(us_since(begin));
  };
  const auto release = [&](uint64_t slot) {
    need(agent_->releaseXferReq(std::exchange(requests[slot], nullptr)), "releasing a request");
  };
  const auto finish = [&](uint64_t slot, bool counts) {
    await(requests[slot]);
    if (counts) stats.transfer.us.push_back(us_since(posted[slot]));
    if (flags_.recreate_xfer) release(slot);
  };
  const auto rounds = [&](uint64_t count, bool counts) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t slot = i % depth;
      if (i >= depth) finish(slot, counts);
      if (requests[slot] == nullptr) prepare(slot, counts);
      posted[slot] = Clock::now();
      const nixl_status_t status = agent_->postXferReq(requests[slot]);
      if (counts) stats.post.us.push_back(us_since(posted[slot]));
      if (status < 0) need(status, "posting a request");
    }
    for (uint64_t i = count - std::min(count, depth); i < count; ++i) finish(i % depth, counts);
  };
  const uint64_t iterations = flags_.iterations(block);
  rounds(std::max<uint64_t>(flags_.warmup_iter / flags_.num_threads, 1), false);
  if (!flags_.recreate_xfer) {
    for (uint64_t slot = 0; slot < depth; ++slot) {
      if (requests[slot] != nullptr) release(slot);
      if (slot < iterations) prepare(slot, true);
    }
  }
  const auto begin = Clock::now();
  rounds(iterations, true);
  stats.total_us = us_since(begin);
  for (uint64_t slot = 0; slot < depth; ++slot) {
    if (requests[slot] != nullptr) release(slot);
  }
}

// Each block once, in the given direction, outside of the measurement.
void Bench::move_all(nixl_xfer_op_t operation, uint64_t block, uint64_t count) const {
  for (uint64_t thread = 0; thread < flags_.num_threads; ++thread) {
    nixlXferReqH* const request = make_request(operation, thread, block, count, 0);
    const nixl_status_t status = agent_->postXferReq(request);
    if (status < 0) need(status, "posting a request");
    await(request);
    need(agent_->releaseXferReq(request), "releasing a request");
  }
}

// ---- steps

namespace {

void print_row(const Flags& flags, uint64_t block, uint64_t batch, Stats& stats) {
  const double iterations = static_cast<double>(flags.iterations(block));
  const double bytes =
      static_cast<double>(block * batch) * iterations * static_cast<double>(flags.num_threads);
  const double seconds = stats.total_us / 1e6;
  const double each = stats.total_us / (iterations * static_cast<double>(batch));
  fmt::print("{:<20}{:<15}{:<15.6f}{:<15.1f}{:<15.1f}{:<15.1f}{:<15.1f}{:<15.1f}{:<15.1f}{:<15.1f}\n", block,
             batch, bytes / 1e9 / seconds, each, stats.prepare.average(), stats.prepare.p99(),
             stats.post.average(), stats.post.p99(), stats.transfer.average(), stats.transfer.p99());
  std::fflush(stdout);
}

void print_header() {
  const std::string separator(160, '-');
  fmt::print("{:<20}{:<15}{:<15}{:<15}{:<15}{:<15}{:<15}{:<15}{:<15}{:<15}\n{}\n", "Block Size (B)",
             "Batch Size", "B/W (GB/Sec)", "Avg Lat. (us)", "Avg Prep (us)", "P99 Prep (us)", "Avg Post (us)",
             "P99 Post (us)", "Avg Tx (us)", "P99 Tx (us)", separator);
  std::fflush(stdout);
}

}  // namespace

bool Bench::run_step(uint64_t block, uint64_t batch) {
  const uint64_t count = batch * flags_.pipeline_depth;
  if (storage_ != nullptr) {
    prepare_storage(block, count);
    // READ needs an object that exists.
    if (!flags_.writes()) {
      fill(block, count, kOfTarget);
      move_all(NIXL_WRITE, block, count);
    }
  }
  if (flags_.check_consistency) fill(block, count, kOfInitiator);
  if (meeting_ != nullptr) {
    meeting_->send("step");
    (void)meeting_->receive();
  }
  std::vector<Stats> stats(flags_.num_threads);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::string failure;
  for (uint64_t thread = 0; thread < flags_.num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        measure_thread(thread, block, batch, stats[thread]);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failure = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error(failure);
  Stats all;
  for (Stats& one : stats) {
    const auto add = [](Samples& to, const Samples& from) {
      to.us.insert(to.us.end(), from.us.begin(), from.us.end());
    };
    add(all.prepare, one.prepare);
    add(all.post, one.post);
    add(all.transfer, one.transfer);
    all.total_us = std::max(all.total_us, one.total_us);
  }
  bool right = true;
  if (meeting_ != nullptr) {
    meeting_->send("ended");
    right = meeting_->receive() == "right";
  }
  if (flags_.check_consistency && !flags_.writes()) right = right && holds(block, count, kOfTarget);
  if (flags_.check_consistency && flags_.writes() && storage_ != nullptr) {
    fill(block, count, 0);
    move_all(NIXL_READ, block, count);
    right = holds(block, count, kOfInitiator);
  }
  if (right) print_row(flags_, block, batch, all);
  return right;
}

bool Bench::serve_step(uint64_t block, uint64_t batch) {
  const uint64_t count = batch * flags_.pipeline_depth;
  (void)meeting_->receive();
  if (flags_.check_consistency || !flags_.writes()) fill(block, count, kOfTarget);
  meeting_->send("ready");
  (void)meeting_->receive();
  const bool right = !flags_.check_consistency || !flags_.writes() || holds(block, count, kOfInitiator);
  meeting_->send(right ? "right" : "wrong");
  return right;
}

bool Bench::run() {
  if (initiates()) print_header();
  for (uint64_t block = flags_.start_block_size; block <= flags_.max_block_size; block *= 2) {
    for (uint64_t batch = flags_.start_batch_size; batch <= flags_.max_batch_size; batch *= 2) {
      if (!(initiates() ? run_step(block, batch) : serve_step(block, batch))) {
        fmt::print(stderr, "Consistency check failed\n");
        return false;
      }
    }
  }
  return true;
}

}  // namespace nixlbench
