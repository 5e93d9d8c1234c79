// The parts of tcpx that a GPU does, each alone, by the same calls of the cuda backend that tcpx makes: unpacking fragments,
// and gathering pages and sending them. Each takes turns with a plain kernel over the identical list, which knows that
// list in advance and runs it in one launch, or with the same bytes sent without gathering. A ratio is of neighbouring
// runs; above 1 Towline is faster. Towline makes the list that the plain kernel has from the start, so what that takes
// has a column of its own. Every byte is compared.
//
// The plain kernel also runs with its list in pinned memory, where Towline's lists have to lie.
//
//   towline_bench_tcpx_parts --plugin FILE --service FILE [--rounds N] [--pool gpu|host]
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "gpu.h"
#include "support/statistics.h"
#include "support/table.h"
#include "towline/plugin/landing.h"
#include "towline/towline.hpp"

namespace {

using bench::tcpx::Gather;
using bench::tcpx::Piece;
using LandingPiece = towline_landing_piece;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kSlots = TOWLINE_LANDING_MOST_SLOTS;
constexpr uint32_t kFrame = TOWLINE_LANDING_MOST_SLOT_BYTES;
constexpr uint64_t kPoolBytes = 16u << 20;
constexpr uint64_t kMostBytes = uint64_t{kSlots} * kFrame;

struct Options {
  std::string plugin;
  std::string service;
  std::string pool = "gpu";
  int rounds = 21;
};

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// The service that cuda offers to tcpx, taken from an agent that has both it and the backend in landing_service.cc.
class Landing {
 public:
  explicit Landing(const Options& options)
      : agent_("parts",
               {.listen = "127.0.0.1:0",
                .config = fmt::format("plugins = [\"{}\", \"{}\"]\n", options.plugin, options.service)}) {
    void* const library = dlopen(options.service.c_str(), RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto find = reinterpret_cast<int32_t (*)(const towline_landing_table_v1**, towline_backend**)>(
        dlsym(library, "towline_bench_landing"));
    if (find == nullptr) throw std::runtime_error(options.service + " is not the harness's own plugin");
    check(find(&table_, &backend_), "no backend copies GPU memory: " + agent_.info());
    // The agent's part of cuda has the reason.
    if (table_->open(backend_, 0, kSlots, kFrame, &landing_, &gather_, &scatter_) != TOWLINE_OK)
      throw std::runtime_error("opening a landing: " + agent_.info());
    check(table_->ready(landing_, 0), "making ready");
  }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  ~Landing() {
    table_->close(landing_);
    if (pool_ != nullptr) table_->close_pool(pool_);
  }

  // Memory that fragments arrive in, on the GPU where that can be had.
  uint64_t make_pool(bool on_gpu, std::string& where) {
    towline_landing_pool_info info = {};
    char reason[512] = "";
    if (on_gpu &&
        table_->open_pool(backend_, "", kPoolBytes, -1, &pool_, &info, reason, sizeof reason) == TOWLINE_OK) {
      check(table_->reach_pool(landing_, pool_), "reaching a pool on the GPU");
      where = "memory of the GPU";
      return info.address;
    }
    where = on_gpu ? fmt::format("host memory, since {}", reason) : "host memory";
    host_pool_.assign(kPoolBytes + 4096, 0);
    uint8_t* const address = host_pool_.data() + 4096 - reinterpret_cast<uint64_t>(host_pool_.data()) % 4096;
    check(table_->reach(landing_, address, kPoolBytes), "reaching a pool in host memory");
    return reinterpret_cast<uint64_t>(address);
  }

  void begin_unpack(uint32_t slot, const std::vector<LandingPiece>& fragments,
                    const std::vector<LandingPiece>& pages) {
    int32_t code = 0;
    check(table_->unpack(landing_, slot, 0, fragments.data(), static_cast<uint32_t>(fragments.size()),
                         pages.data(), static_cast<uint32_t>(pages.size()), &code),
          "beginning to unpack");
  }
  void begin_gather(uint32_t slot, const std::vector<LandingPiece>& pages) {
    int32_t code = 0;
    check(table_->begin(landing_, TOWLINE_LANDING_GATHER, slot, 0, pages.data(),
                        static_cast<uint32_t>(pages.size()), &code),
          "beginning to gather");
  }
  void wait(uint32_t way, uint32_t slot) {
    for (int32_t status = TOWLINE_IN_PROGRESS; status == TOWLINE_IN_PROGRESS;) {
      int32_t code = 0;
      const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch());
      status = table_->poll(landing_, way, slot, static_cast<uint64_t>(now.count()), &code);
      if (status != TOWLINE_IN_PROGRESS) check(status, "a copy");
    }
  }
  [[nodiscard]] const uint8_t* gathered(uint32_t slot) const {
    return static_cast<const uint8_t*>(gather_) + uint64_t{slot} * kFrame;
  }

 private:
  static void check(int32_t status, const std::string& what) {
    if (status != TOWLINE_OK)
      throw std::runtime_error(fmt::format("{}: {}", what, towline_status_name(status)));
  }

  towline::Agent agent_;
  const towline_landing_table_v1* table_ = nullptr;
  towline_backend* backend_ = nullptr;
  towline_landing* landing_ = nullptr;
  towline_landing_pool* pool_ = nullptr;
  std::vector<uint8_t> host_pool_;
  void* gather_ = nullptr;
  void* scatter_ = nullptr;
};

// Payload of frames of at most 1 MiB: fragments of a pool, and pages on the GPU, cut differently.
struct List {
  std::vector<std::vector<LandingPiece>> fragments;  // by frame
  std::vector<std::vector<LandingPiece>> pages;
  std::vector<Piece> pieces;  // both at once, for the plain kernel
  uint64_t bytes = 0;
};

// Fragments lie in random order in the pool. `odd`: of any length and alignment, as are the pages.
List make_list(uint64_t bytes, bool odd, uint64_t pool, uint64_t target, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> places(kPoolBytes / 4096);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  List list;
  list.bytes = bytes;
  std::size_t place = 0;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t frame = std::min<uint64_t>(kFrame, bytes - done);
    auto& fragments = list.fragments.emplace_back();
    for (uint64_t left = frame; left != 0; ++place) {
      const uint64_t skip = odd ? random() % 64 : 0;
      const uint64_t length = std::min(left, odd ? 1448 + random() % 2500 : uint64_t{4096});
      fragments.push_back({pool + places.at(place) * 4096 + skip, length});
      left -= length;
    }
    auto& pages = list.pages.emplace_back();
    for (uint64_t left = frame; left != 0;) {
      const uint64_t length = std::min(left, odd ? 3000 + random() % 9000 : uint64_t{16384});
      pages.push_back({target + done + frame - left, length});
      left -= length;
    }
    std::size_t next = 0;
    uint64_t used = 0;
    for (const LandingPiece& page : pages)
      for (uint64_t at = 0; at < page.bytes;) {
        const uint64_t here = std::min(page.bytes - at, fragments[next].bytes - used);
        list.pieces.push_back({page.address + at, fragments[next].address + used, here});
        at += here;
        used += here;
        if (used == fragments[next].bytes) ++next, used = 0;
      }
    done += frame;
  }
  return list;
}

std::vector<uint8_t> noise(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> made(bytes);
  for (uint64_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(made.data() + at, &word, std::min<uint64_t>(8, bytes - at));
  }
  return made;
}

struct Turns {
  std::vector<double> ours;
  std::vector<double> plain;
  std::vector<double> ratio;
};

Turns take_turns(int rounds, const std::function<double()>& ours, const std::function<double()>& plain) {
  Turns turns;
  for (int i = -3; i < rounds; ++i) {
    const bool first = i % 2 == 0;
    const double before = first ? plain() : 0;
    const double own = ours();
    const double other = first ? before : plain();
    if (i < 0) continue;  // warms up
    turns.ours.push_back(own);
    turns.plain.push_back(other);
    turns.ratio.push_back(other / own);
  }
  return turns;
}

std::string show(const std::vector<double>& values, double scale,
                 const char* format = "{:.2f} [{:.2f} {:.2f}]") {
  const bench::Spread spread = bench::spread_of(values);
  return fmt::format(fmt::runtime(format), spread.median * scale, spread.min * scale, spread.max * scale);
}

class Parts {
 public:
  explicit Parts(const Options& options)
      : options_(options), target_(bench::tcpx::allocate(kMostBytes)), landing_(options) {
    pool_ = landing_.make_pool(options.pool == "gpu", where_);
  }

  // Also the two seconds' worth of an empty launch, which a small list is held against.
  void unpack(bench::Rows& rows, const char* name, uint64_t bytes, bool odd) {
    const List list = make_list(bytes, odd, pool_, target_, bytes + odd);
    const std::vector<uint8_t> sent = noise(kPoolBytes, bytes);
    bench::tcpx::write(pool_, sent.data(), sent.size());
    const auto frames = static_cast<uint32_t>(list.fragments.size());
    std::vector<double>
        handed;  // seconds until the frames were handed over: what was launched then is the GPU's
    const auto ours = [&] {
      const auto begun = Clock::now();
      for (uint32_t slot = 0; slot < frames; ++slot)
        landing_.begin_unpack(slot, list.fragments[slot], list.pages[slot]);
      handed.push_back(seconds_since(begun));
      for (uint32_t slot = 0; slot < frames; ++slot) landing_.wait(TOWLINE_LANDING_SCATTER, slot);
      return seconds_since(begun);
    };
    Gather plain(list.pieces);
    Gather pinned(list.pieces, true);
    Gather empty({});
    // Also the ratio to what is left of ours after the list was made.
    const auto against = [&](Gather& gather, std::vector<double>& alone) {
      Turns turns = take_turns(options_.rounds, ours, [&] { return gather.run(); });
      handed.erase(handed.begin(), handed.end() - options_.rounds);
      for (std::size_t i = 0; i < handed.size(); ++i)
        alone.push_back(turns.plain[i] / (turns.ours[i] - handed[i]));
      return turns;
    };
    std::vector<double> alone_of_pinned;
    const Turns turns_of_pinned = against(pinned, alone_of_pinned);
    std::vector<double> alone;
    const Turns turns = against(plain, alone);
    const std::vector<double> measured = handed;
    const Turns launch = take_turns(options_.rounds, ours, [&] { return empty.run(); });
    std::vector<double> over;
    for (std::size_t i = 0; i < launch.ours.size(); ++i) over.push_back(launch.ours[i] - launch.plain[i]);
    clear();
    (void)ours();
    compare(list, sent);
    rows.push_back({name, fmt::format("{}", list.pieces.size()), show(turns.ours, 1e6), show(measured, 1e6),
                    show(turns.plain, 1e6), show(turns.ratio, 1), show(alone, 1),
                    show(turns_of_pinned.plain, 1e6), show(alone_of_pinned, 1), show(over, 1e6)});
  }

  // Pages are gathered into a slot, which goes to a socket whose other end throws it away.
  void send(bench::Rows& rows, const char* name, uint64_t page) {
    std::mt19937_64 random(page);
    std::vector<uint64_t> places(kMostBytes / page);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    const std::vector<uint8_t> held = noise(kMostBytes, page);
    bench::tcpx::write(target_, held.data(), held.size());
    std::vector<std::vector<LandingPiece>> pages(kSlots);
    for (std::size_t i = 0; i < places.size(); ++i)
      pages[i * page / kFrame].push_back({target_ + places[i] * page, page});
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("no pair of sockets");
    std::thread drain([fd = ends[1]] {
      std::vector<uint8_t> bytes(kFrame);
      while (::recv(fd, bytes.data(), bytes.size(), 0) > 0) {
      }
    });
    const auto write_out = [&](const uint8_t* from) {
      for (uint64_t done = 0; done < kFrame;) {
        const ssize_t n = ::send(ends[0], from + done, kFrame - done, MSG_NOSIGNAL);
        if (n <= 0) throw std::runtime_error("sending failed");
        done += static_cast<uint64_t>(n);
      }
    };
    const auto run = [&](bool gathers) {
      const auto begun = Clock::now();
      for (uint32_t slot = 0; gathers && slot < kSlots; ++slot) landing_.begin_gather(slot, pages[slot]);
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        if (gathers) landing_.wait(TOWLINE_LANDING_GATHER, slot);
        write_out(landing_.gathered(slot));
      }
      return seconds_since(begun);
    };
    const auto gather_alone = [&] {
      const auto begun = Clock::now();
      for (uint32_t slot = 0; slot < kSlots; ++slot) landing_.begin_gather(slot, pages[slot]);
      for (uint32_t slot = 0; slot < kSlots; ++slot) landing_.wait(TOWLINE_LANDING_GATHER, slot);
      return seconds_since(begun);
    };
    const Turns turns = take_turns(
        options_.rounds, [&] { return run(true); }, [&] { return run(false); });
    const Turns alone = take_turns(options_.rounds, gather_alone, gather_alone);
    ::shutdown(ends[0], SHUT_RDWR);
    drain.join();
    ::close(ends[0]);
    ::close(ends[1]);
    for (std::size_t i = 0; i < places.size(); ++i)
      if (std::memcmp(landing_.gathered(0) + i * page, held.data() + places[i] * page, page) != 0)
        throw std::runtime_error(fmt::format("{}: page {} was gathered with wrong bytes", name, i));
    rows.push_back(
        {name, show(alone.ours, 1e6), show(turns.ours, 1e6), show(turns.plain, 1e6), show(turns.ratio, 1)});
  }

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  void clear() {
    const std::vector<uint8_t> zeros(kMostBytes);
    bench::tcpx::write(target_, zeros.data(), zeros.size());
  }
  void compare(const List& list, const std::vector<uint8_t>& sent) {
    std::vector<uint8_t> got(list.bytes);
    bench::tcpx::read(got.data(), target_, got.size());
    for (const Piece& piece : list.pieces)
      if (std::memcmp(got.data() + (piece.to - target_), sent.data() + (piece.from - pool_), piece.bytes) !=
          0)
        throw std::runtime_error(
            fmt::format("{} bytes at {} of the target are wrong", piece.bytes, piece.to - target_));
  }

  const Options options_;
  const uint64_t target_;  // first: memory is pinned only in a process that uses a GPU
  Landing landing_;
  uint64_t pool_ = 0;
  std::string where_;
};

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App app{"What a GPU does for tcpx: unpacking alone, and gathering and sending alone."};
  app.add_option("--plugin", options.plugin, "libtowline_cuda.so")->required();
  app.add_option("--service", options.service, "the harness's own plugin")->required();
  app.add_option("--rounds", options.rounds, "measured")->check(CLI::PositiveNumber);
  app.add_option("--pool", options.pool, "where fragments lie")->check(CLI::IsMember({"gpu", "host"}));
  CLI11_PARSE(app, count, arguments);
  if (!bench::tcpx::there_is_a_gpu()) {
    std::fprintf(stderr, "there is no GPU\n");
    return 77;
  }
  try {
    Parts parts(options);
    std::printf("%s; fragments lie in %s\n\n", bench::tcpx::gpu_name().c_str(), parts.where().c_str());
    bench::Rows unpack = {{"unpack", "pieces", "us", "of that making the list, us", "plain kernel, us",
                           "its time over ours", "over ours without making the list",
                           "plain kernel with its list in pinned memory, us",
                           "over ours without making the list", "us over an empty launch"}};
    parts.unpack(unpack, "8 MiB, 4 KiB each", 8u << 20, false);
    parts.unpack(unpack, "8 MiB, odd", 8u << 20, true);
    parts.unpack(unpack, "1 MiB, 4 KiB each", 1u << 20, false);
    parts.unpack(unpack, "256 KiB, 4 KiB each", 256u << 10, false);
    parts.unpack(unpack, "256 KiB, odd", 256u << 10, true);
    std::printf("%s\n", bench::render(unpack).c_str());
    bench::Rows send = {
        {"send side, 8 MiB", "gathering alone, us", "us", "without gathering, us", "its time over ours"}};
    parts.send(send, "4 KiB pages", 4096);
    parts.send(send, "64 KiB pages", 65536);
    std::printf("%s", bench::render(send).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
