// A rank of Open MPI, which is loaded at run time: this file is not compiled against it. The part of its
// binary interface that is used here is the same from 4.0 to 5.0: handles are addresses of its objects.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <numeric>

#include "bench/collective_peer.h"
#include "failure.h"

namespace tool::bench {
namespace {

class OpenMpi {
 public:
  OpenMpi() : library_(::dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL)) {
    if (library_ == nullptr) throw Failure{fmt::format("no Open MPI: {}", ::dlerror())};
    find(init_, "MPI_Init");
    find(finalize_, "MPI_Finalize");
    find(rank_, "MPI_Comm_rank");
    find(size_, "MPI_Comm_size");
    find(barrier_, "MPI_Barrier");
    find(all_reduce_, "MPI_Allreduce");
    find(reduce_, "MPI_Reduce");
    find(broadcast_, "MPI_Bcast");
    find(all_gather_, "MPI_Allgather");
    find(all_gather_v_, "MPI_Allgatherv");
    find(reduce_scatter_, "MPI_Reduce_scatter_block");
    find(reduce_scatter_v_, "MPI_Reduce_scatter");
    find(gather_, "MPI_Gather");
    find(scatter_, "MPI_Scatter");
    find(all_to_all_, "MPI_Alltoall");
    find(all_to_all_v_, "MPI_Alltoallv");
    find(send_receive_, "MPI_Sendrecv");
    find(describe_, "MPI_Get_library_version");
    world_ = object("ompi_mpi_comm_world");
    float_ = object("ompi_mpi_float");
    sum_ = object("ompi_mpi_op_sum");
    init_(nullptr, nullptr);
    rank_(world_, &me_);
    size_(world_, &ranks_);
  }
  ~OpenMpi() { finalize_(); }
  OpenMpi(const OpenMpi&) = delete;

  [[nodiscard]] int rank() const { return me_; }
  void barrier() { barrier_(world_); }
  [[nodiscard]] std::string version() const {
    char text[256 + 1024] = {};
    int length = 0;
    describe_(text, &length);
    const std::string whole(text);
    return whole.substr(0, whole.find(','));
  }

  // Makes buffers for the job; false if Open MPI has no such operation.
  bool prepare(const CollectiveJob& job) {
    const auto n = static_cast<uint64_t>(ranks_);
    const bool whole = job.op == "all_reduce" || job.op == "reduce" || job.op == "broadcast" ||
                       job.op == "send_recv" || job.op == "barrier";
    const uint64_t even = whole ? job.count : job.count * n;
    const auto take = [&](const std::vector<uint64_t>& counts, std::vector<int>& to, std::vector<int>& at) {
      to.assign(counts.begin(), counts.end());
      at.assign(counts.size(), 0);
      for (size_t i = 1; i < to.size(); ++i) at[i] = at[i - 1] + to[i - 1];
      return counts.empty() ? even : std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    };
    in_.assign(take(job.sends, sends_, sends_at_), 1.0F);
    out_.assign(take(job.receives, receives_, receives_at_), 0.0F);
    count_ = static_cast<int>(job.count);
    op_ = job.op;
    return run();
  }
  bool run() {
    const float* const in = in_.data();
    float* const out = out_.data();
    const int n = count_;
    if (op_ == "barrier")
      barrier_(world_);
    else if (op_ == "all_reduce")
      all_reduce_(in, out, n, float_, sum_, world_);
    else if (op_ == "reduce")
      reduce_(in, out, n, float_, sum_, 0, world_);
    else if (op_ == "broadcast")
      broadcast_(out, n, float_, 0, world_);
    else if (op_ == "all_gather")
      all_gather_(in, n, float_, out, n, float_, world_);
    else if (op_ == "all_gather_v")
      all_gather_v_(in, static_cast<int>(in_.size()), float_, out, receives_.data(), receives_at_.data(),
                    float_, world_);
    else if (op_ == "reduce_scatter")
      reduce_scatter_(in, out, n, float_, sum_, world_);
    else if (op_ == "reduce_scatter_v")
      reduce_scatter_v_(in, out, sends_.data(), float_, sum_, world_);
    else if (op_ == "gather")
      gather_(in, n, float_, out, n, float_, 0, world_);
    else if (op_ == "scatter")
      scatter_(in, n, float_, out, n, float_, 0, world_);
    else if (op_ == "all_to_all")
      all_to_all_(in, n, float_, out, n, float_, world_);
    else if (op_ == "all_to_all_v")
      all_to_all_v_(in, sends_.data(), sends_at_.data(), float_, out, receives_.data(), receives_at_.data(),
                    float_, world_);
    else if (op_ == "send_recv")
      send_receive_(in, n, float_, (me_ + 1) % ranks_, 0, out, n, float_, (me_ + ranks_ - 1) % ranks_, 0,
                    world_, nullptr);
    else
      return false;
    return true;
  }

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(object(name));
  }
  void* object(const char* name) const {
    void* const found = ::dlsym(library_, name);
    if (found == nullptr) throw Failure{fmt::format("libmpi.so.40 has no {}", name)};
    return found;
  }

  void* const library_;
  int (*init_)(int*, char***) = nullptr;
  int (*finalize_)() = nullptr;
  int (*rank_)(void*, int*) = nullptr;
  int (*size_)(void*, int*) = nullptr;
  int (*describe_)(char*, int*) = nullptr;
  int (*barrier_)(void*) = nullptr;
  int (*all_reduce_)(const void*, void*, int, void*, void*, void*) = nullptr;
  int (*reduce_)(const void*, void*, int, void*, void*, int, void*) = nullptr;
  int (*broadcast_)(void*, int, void*, int, void*) = nullptr;
  int (*all_gather_)(const void*, int, void*, void*, int, void*, void*) = nullptr;
  int (*all_gather_v_)(const void*, int, void*, void*, const int*, const int*, void*, void*) = nullptr;
  int (*reduce_scatter_)(const void*, void*, int, void*, void*, void*) = nullptr;
  int (*reduce_scatter_v_)(const void*, void*, const int*, void*, void*, void*) = nullptr;
  int (*gather_)(const void*, int, void*, void*, int, void*, int, void*) = nullptr;
  int (*scatter_)(const void*, int, void*, void*, int, void*, int, void*) = nullptr;
  int (*all_to_all_)(const void*, int, void*, void*, int, void*, void*) = nullptr;
  int (*all_to_all_v_)(const void*, const int*, const int*, void*, void*, const int*, const int*, void*,
                       void*) = nullptr;
  int (*send_receive_)(const void*, int, void*, int, int, void*, int, void*, int, int, void*,
                       void*) = nullptr;
  void* world_ = nullptr;
  void* float_ = nullptr;
  void* sum_ = nullptr;
  int me_ = 0;
  int ranks_ = 1;
  std::string op_;
  int count_ = 0;
  std::vector<int> sends_, sends_at_, receives_, receives_at_;
  std::vector<float> in_, out_;
};

int call(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw Failure{fmt::format("cannot reach {}", path)};
  return fd;
}

}  // namespace

int run_mpi_peer(const std::string& folder) {
  using Clock = std::chrono::steady_clock;
  OpenMpi mpi;
  Channel rank{call(fmt::format("{}/mpi-{}", folder, mpi.rank()))};
  rank.send({{"version", mpi.version()}});
  while (!rank.closed()) {
    const auto message = rank.receive(std::chrono::hours(1));
    if (!message) continue;
    const auto job = message->get<CollectiveJob>();
    mpi.barrier();
    if (!mpi.prepare(job)) {
      rank.send({{"missing", true}});
      continue;
    }
    std::vector<double> times;
    for (uint64_t sample = 0; sample < job.samples; ++sample) {
      const auto begin = Clock::now();
      for (uint64_t i = 0; i < job.batch; ++i) mpi.run();
      times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() /
                      static_cast<double>(job.batch));
    }
    rank.send({{"times", times}});
  }
  return 0;
}

}  // namespace tool::bench
