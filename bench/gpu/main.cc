// Paged transfers between GPUs, interleaved with the plain kernel over the identical list. Two processes:
// this one moves the bytes on GPU 0, its child owns memory on the last GPU. Pages are drawn at random over a
// span well beyond any cache; each is stamped, and compared after the last round.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>

#include "all_to_all.h"
#include "beside.h"
#include "collectives.h"
#include "gpu.h"
#include "norm.h"
#include "shared.h"
#include "support/statistics.h"
#include "support/table.h"
#include "together.h"
#include "towline/towline.hpp"
#include "ways.h"

namespace bench {
namespace {

using namespace std::chrono_literals;

struct Options {
  std::string plugin;
  uint64_t span = uint64_t{33} << 30;
  uint64_t host_span = uint64_t{4} << 30;
  int rounds = 15;
  int blocks = 24;
  int read_blocks = 12;
  int host_blocks = 8;
  bool target = false;
  bool all = false;
  bool ways = false;
  bool beside = false;
  gpu::BesideOptions besides;
  bool together = false;
  bool norm = false;
  bool shared = false;
  bool collective = false;
  gpu::CollectivesOptions collectives;
  bool on_stream = false;
  bool pageable = false;
  bool through_host = false;
  std::string pin;
};

std::string of_times(const std::vector<double>& seconds) {
  const Spread times = spread_of(seconds);
  return fmt::format("{:.1f} [{:.1f} {:.1f}]", times.median * 1e6, times.min * 1e6, times.max * 1e6);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string unhex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

towline::AgentOptions agent_options(const Options& options) {
  towline::AgentOptions result;
  result.listen = "none";
  result.backends = "cuda";
  result.config = fmt::format(
      "plugins = [\"{}\"]\n[tuning.cuda]\nblocks = \"{}\"\nread_blocks = \"{}\"\nhost_blocks = \"{}\"\n",
      options.plugin, options.blocks, options.read_blocks, options.host_blocks);
  if (!options.pin.empty()) result.config += fmt::format("pin = \"{}\"\n", options.pin);
  if (options.through_host) result.config += "through_host = \"always\"\n";
  return result;
}

// The owner of the far memory: registers it and waits until it is told to go.
int serve(const Options& options) {
  const int gpu = gpu::count() - 1;
  gpu::use(gpu);
  const uint64_t address = gpu::allocate(options.span);
  towline::Agent agent("target", agent_options(options));
  const auto region = agent.register_memory({.address = reinterpret_cast<void*>(address),
                                             .bytes = options.span,
                                             .kind = towline::Kind::kVram,
                                             .device = static_cast<uint64_t>(gpu)},
                                            {.access = towline::Access::kAll});
  const auto blob = agent.metadata();
  std::cout << hex({reinterpret_cast<const char*>(blob.data()), blob.size()}) << ' '
            << hex(gpu::export_handle(address)) << ' ' << address << ' ' << gpu << std::endl;
  std::string line;
  std::getline(std::cin, line);
  return 0;
}

class Target {
 public:
  Target(const char* self, const Options& options) {
    int down[2];
    int up[2];
    if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("pipe");
    child_ = fork();
    if (child_ == 0) {
      dup2(down[0], 0);
      dup2(up[1], 1);
      for (const int fd : {down[0], down[1], up[0], up[1]}) close(fd);
      const std::string span = std::to_string(options.span);
      execl(self, self, "--target", "--plugin", options.plugin.c_str(), "--span", span.c_str(), nullptr);
      _exit(127);
    }
    close(down[0]);
    close(up[1]);
    input_ = down[1];
    std::FILE* const lines = fdopen(up[0], "r");
    std::vector<char> line(1 << 20);
    if (std::fgets(line.data(), static_cast<int>(line.size()), lines) == nullptr)
      throw std::runtime_error("the target process ended");
    std::istringstream words(line.data());
    std::string blob;
    std::string exported;
    words >> blob >> exported >> address >> gpu;
    metadata = unhex(blob);
    handle = unhex(exported);
    std::fclose(lines);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() {
    close(input_);
    waitpid(child_, nullptr, 0);
  }

  std::string metadata;
  std::string handle;
  uint64_t address = 0;
  uint64_t gpu = 0;

 private:
  pid_t child_ = 0;
  int input_ = -1;
};

struct Cell {
  std::string name;
  bool read = false;
  uint64_t page;
  uint64_t pages;
  bool host;
};

struct Ends {
  towline::Agent& agent;
  towline::Peer& peer;
  uint64_t local;        // vram
  std::byte* host;       // pinned
  uint64_t remote;       // at its owner
  uint64_t remote_here;  // as mapped for the plain kernel
  uint64_t remote_gpu;
};

std::vector<uint32_t> draw(uint64_t available, uint64_t wanted, std::mt19937& random) {
  std::vector<uint32_t> all(available);
  std::iota(all.begin(), all.end(), 0u);
  for (uint64_t i = 0; i < wanted; ++i) std::swap(all[i], all[i + random() % (available - i)]);
  all.resize(wanted);
  return all;
}

std::vector<std::string> run(const Cell& cell, const Options& options, const Ends& ends, int& wrong) {
  std::mt19937 random(7);
  const uint64_t local_span = cell.host ? options.host_span : options.span;
  const auto mine = draw(local_span / cell.page, cell.pages, random);
  const auto theirs = draw(options.span / cell.page, cell.pages, random);
  const uint64_t local = cell.host ? reinterpret_cast<uint64_t>(ends.host) : ends.local;
  const bool read = cell.read;
  std::vector<gpu::Pair> pairs(cell.pages);
  for (uint64_t i = 0; i < cell.pages; ++i) {
    const uint64_t here = local + mine[i] * cell.page;
    const uint64_t there = ends.remote_here + theirs[i] * cell.page;
    pairs[i] = read ? gpu::Pair{here, there} : gpu::Pair{there, here};
  }
  gpu::PageList bare(pairs, cell.page);
  const auto kind = cell.host ? towline::Kind::kDram : towline::Kind::kVram;
  const double begun = now_s();
  const auto here = ends.agent.block_list(
      towline::Blocks::at(local, cell.page, kind, 0).repeat(local_span / cell.page, cell.page));
  const auto there =
      ends.peer.block_list(towline::Blocks::at(ends.remote, cell.page, towline::Kind::kVram, ends.remote_gpu)
                               .repeat(options.span / cell.page, cell.page));
  const double listed = now_s();
  const auto make = [&] {
    return cell.read ? ends.agent.transfer(there[theirs], here[mine])
                     : ends.agent.transfer(here[mine], there[theirs]);
  };
  const towline::Transfer move = make();
  const double made = now_s();
  std::vector<double> make_s{made - listed};
  const bool many = cell.pages > 65536;
  for (int i = 0; i < 50 && many; ++i) {
    const double start = now_s();
    const towline::Transfer another = make();
    make_s.push_back(now_s() - start);
  }
  const auto ours = [&] {
    const double start = now_s();
    towline::Status status = options.on_stream ? move.post_on(gpu::native_stream()) : move.post();
    const double posted = now_s();
    while (status == towline::Status::kInProgress) status = move.poll();
    const double ended = now_s();
    if (status != towline::Status::kOk)
      throw std::runtime_error(
          fmt::format("{}: {} {}", cell.name, towline::status_name(status), towline::last_error()));
    return std::pair{posted - start, ended - start};
  };
  const int blocks = cell.host ? options.host_blocks : read ? options.read_blocks : options.blocks;
  const int bare_blocks = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(blocks), cell.pages));
  const bool one = cell.pages == 1 && cell.page > (64u << 20);
  const bool by_calls = !cell.host && cell.pages > 1 && cell.pages <= 16384;
  const auto peer_gpu = static_cast<int>(ends.remote_gpu);
  std::vector<double> bare_s;
  std::vector<double> ours_s;
  std::vector<double> post_s;
  std::vector<double> engine_s;
  const int more = cell.pages * cell.page < (1u << 20) ? 20 : many ? 7 : 1;
  const int rounds = options.rounds * more;
  for (int round = -2; round < rounds; ++round) {
    const double a = bare.copy(one ? options.blocks : bare_blocks);
    const auto [posted, b] = ours();
    double c = 0;
    if (one)
      c = gpu::copy_engine(pairs[0].to, pairs[0].from, cell.page);
    else if (by_calls)
      c = bare.copy_by_calls(read ? 0 : peer_gpu, read ? peer_gpu : 0);
    if (round < 0) continue;
    bare_s.push_back(a);
    ours_s.push_back(b);
    post_s.push_back(posted);
    engine_s.push_back(c);
  }
  // The comparison covers only bytes that our last transfer wrote.
  for (const gpu::Pair& pair : pairs)
    if (pairs.size() <= 4096) gpu::fill(pair.to, std::min<uint64_t>(cell.page, 4096), 0xee);
  (void)ours();
  const uint64_t differing = bare.differing_words();
  wrong += differing != 0;
  const double bytes = static_cast<double>(cell.page * cell.pages);
  const Spread b = spread_of(bare_s);
  const Spread o = spread_of(ours_s);
  const Spread limit = one ? spread_of(engine_s) : b;
  return {cell.name,
          fmt::format("{:.1f}", bytes / o.median / 1e9),
          fmt::format("{:.1f}-{:.1f}", bytes / o.max / 1e9, bytes / o.min / 1e9),
          fmt::format("{:.1f}", bytes / b.median / 1e9),
          one || by_calls ? fmt::format("{:.1f}", bytes / spread_of(engine_s).median / 1e9) : "-",
          fmt::format("{:.3f}", limit.median / o.median),
          fmt::format("{:.1f}", o.median * 1e6),
          fmt::format("{:.1f}", b.median * 1e6),
          of_times(post_s),
          fmt::format("{:.0f}", (listed - begun) * 1e6),
          of_times(make_s),
          differing == 0 ? "right" : fmt::format("{} WORDS WRONG", differing)};
}

// The halves of one draw, written and read at the same time; the bytes of both over the time until both are
// over.
std::vector<std::string> run_both_ways(uint64_t page, uint64_t pages, const Options& options,
                                       const Ends& ends) {
  std::mt19937 random(11);
  const auto mine = draw(options.span / page, 2 * pages, random);
  const auto theirs = draw(options.span / page, 2 * pages, random);
  std::vector<gpu::Pair> out(pages);
  std::vector<gpu::Pair> in(pages);
  for (uint64_t i = 0; i < pages; ++i) {
    out[i] = {ends.remote_here + theirs[i] * page, ends.local + mine[i] * page};
    in[i] = {ends.local + mine[pages + i] * page, ends.remote_here + theirs[pages + i] * page};
  }
  gpu::PageList bare_out(out, page);
  gpu::PageList bare_in(in, page);
  const auto here = ends.agent.block_list(
      towline::Blocks::at(ends.local, page, towline::Kind::kVram, 0).repeat(options.span / page, page));
  const auto there =
      ends.peer.block_list(towline::Blocks::at(ends.remote, page, towline::Kind::kVram, ends.remote_gpu)
                               .repeat(options.span / page, page));
  const towline::Transfer write =
      ends.agent.transfer(here[std::span(mine).first(pages)], there[std::span(theirs).first(pages)]);
  const towline::Transfer read =
      ends.agent.transfer(there[std::span(theirs).last(pages)], here[std::span(mine).last(pages)]);
  std::vector<double> bare_s;
  std::vector<double> ours_s;
  for (int round = -2; round < options.rounds; ++round) {
    const double start = now_s();
    bare_out.begin(options.blocks);
    bare_in.begin(options.read_blocks);
    bare_out.wait();
    bare_in.wait();
    const double middle = now_s();
    towline::Status first = write.post();
    towline::Status second = read.post();
    while (first == towline::Status::kInProgress || second == towline::Status::kInProgress) {
      if (first == towline::Status::kInProgress) first = write.poll();
      if (second == towline::Status::kInProgress) second = read.poll();
    }
    const double end = now_s();
    if (first != towline::Status::kOk || second != towline::Status::kOk)
      throw std::runtime_error(std::string(towline::last_error()));
    if (round < 0) continue;
    bare_s.push_back(middle - start);
    ours_s.push_back(end - middle);
  }
  const double bytes = 2.0 * static_cast<double>(page * pages);
  const Spread b = spread_of(bare_s);
  const Spread o = spread_of(ours_s);
  return {fmt::format("both ways {} KiB x {}", page >> 10, pages),
          fmt::format("{:.1f}", bytes / o.median / 1e9),
          fmt::format("{:.1f}-{:.1f}", bytes / o.max / 1e9, bytes / o.min / 1e9),
          fmt::format("{:.1f}", bytes / b.median / 1e9),
          "-",
          fmt::format("{:.3f}", b.median / o.median),
          fmt::format("{:.1f}", o.median * 1e6),
          fmt::format("{:.1f}", b.median * 1e6),
          "-",
          "-",
          "-",
          bare_out.differing_words() + bare_in.differing_words() == 0 ? "right" : "WRONG"};
}

// Host memory as malloc gives it, moved once and again: fresh memory to the far GPU, and back into other
// fresh memory. The first time holds all that its being fresh costs, from the index arrays on.
bool add_pageable(Rows& rows, const Target& target, const std::string& pin, uint64_t bytes, Options options) {
  constexpr uint64_t kPage = 32768;
  options.pin = pin;
  towline::Agent agent("initiator", agent_options(options));
  towline::Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata)));
  const auto there =
      peer.block_list(towline::Blocks::at(target.address, kPage, towline::Kind::kVram, target.gpu)
                          .repeat(bytes / kPage, kPage));
  std::mt19937 random(5);
  const auto picks = draw(bytes / kPage, bytes / kPage, random);
  std::vector<double> first_s[2];
  std::vector<double> second_s[2];
  std::vector<double> later_s[2];
  bool right = true;
  for (int turn = 0; turn < 5; ++turn) {
    const std::unique_ptr<void, decltype(&std::free)> memory[2] = {
        {gpu::allocate_pageable(bytes), &std::free}, {gpu::allocate_pageable(bytes), &std::free}};
    std::memset(memory[1].get(), 0, bytes);
    for (const bool read : {false, true}) {
      auto* const host = static_cast<std::byte*>(memory[read ? 1 : 0].get());
      const auto region =
          agent.register_memory(towline::dram(host, bytes), {.access = towline::Access::kAll});
      const auto here = agent.block_list(towline::blocks_of(host, bytes, kPage));
      const double begun = now_s();
      const auto move =
          read ? agent.transfer(there[picks], here[picks]) : agent.transfer(here[picks], there[picks]);
      const auto post = [&](double start) {
        towline::Status status = move.post();
        while (status == towline::Status::kInProgress) status = move.poll();
        if (status != towline::Status::kOk) throw std::runtime_error(std::string(towline::last_error()));
        return now_s() - start;
      };
      first_s[read ? 1 : 0].push_back(post(begun));
      second_s[read ? 1 : 0].push_back(post(now_s()));
      const double pinned_s = now_s() + 0.1 + static_cast<double>(bytes) / 10e9;  // by then, if ever
      while (now_s() < pinned_s) (void)post(now_s());
      for (int i = 0; i < 3; ++i) later_s[read ? 1 : 0].push_back(post(now_s()));
    }
    right = right && std::memcmp(memory[0].get(), memory[1].get(), bytes) == 0;
  }
  const auto speed = [&](const std::vector<double>& seconds) {
    const Spread times = spread_of(seconds);
    const auto size = static_cast<double>(bytes);
    return fmt::format("{:.1f} [{:.1f} {:.1f}]", size / times.median / 1e9, size / times.max / 1e9,
                       size / times.min / 1e9);
  };
  for (const int read : {0, 1})
    rows.push_back({read != 0 ? "peer to host" : "host to peer", fmt::format("{} MiB", bytes >> 20), pin,
                    speed(first_s[read]), speed(second_s[read]), speed(later_s[read]),
                    right ? "right" : "WRONG"});
  return right;
}

int measure_pageable(const char* self, const Options& options) {
  const Target target(self, options);
  gpu::use(0);
  gpu::synchronize();  // the process uses a GPU
  Rows rows{{"transfer", "bytes, 32 KiB each", "tuning.cuda.pin", "first, GB/s", "second, GB/s",
             "later, GB/s", "pages"}};
  bool right = true;
  for (const uint64_t bytes : {uint64_t{128} << 20, uint64_t{1} << 30, options.host_span})
    for (const char* pin : {"auto", "first", "never"})
      right = add_pageable(rows, target, pin, bytes, options) && right;
  std::cout << render(rows) << std::endl;
  return right ? 0 : 1;
}

int measure(const char* self, const Options& options) {
  const Target target(self, options);
  gpu::use(0);
  std::cout << fmt::format(
      "{} x {}, thread blocks: {} to write, {} to read, {} with host memory; medians of {} rounds, spans {} "
      "GiB\n\n",
      gpu::count(), gpu::name(0), options.blocks, options.read_blocks, options.host_blocks, options.rounds,
      options.span >> 30);
  towline::Agent agent("initiator", agent_options(options));
  const uint64_t local = gpu::allocate(options.span);
  auto* const host = static_cast<std::byte*>(gpu::allocate_pinned(options.host_span));
  const auto region = agent.register_memory(
      {.address = reinterpret_cast<void*>(local), .bytes = options.span, .kind = towline::Kind::kVram},
      {.access = towline::Access::kAll});
  const auto host_region =
      agent.register_memory(towline::dram(host, options.host_span), {.access = towline::Access::kAll});
  towline::Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata)));
  const uint64_t mapped = gpu::import_handle(target.handle);
  gpu::stamp(local, options.span, 1);
  gpu::stamp(mapped, options.span, 2);
  gpu::stamp(reinterpret_cast<uint64_t>(host), options.host_span, 3);
  const Ends ends{agent, peer, local, host, target.address, mapped, target.gpu};
  constexpr bool kWrite = false;
  constexpr bool kRead = true;
  const Cell cells[] = {
      {"write 32 KiB x 4096", kWrite, 32768, 4096, false},
      {"read 32 KiB x 4096", kRead, 32768, 4096, false},
      {"write 64 KiB x 4096", kWrite, 65536, 4096, false},
      {"read 64 KiB x 4096", kRead, 65536, 4096, false},
      {"write 4 KiB x 16384", kWrite, 4096, 16384, false},
      {"read 4 KiB x 16384", kRead, 4096, 16384, false},
      {"write 1 GiB x 1", kWrite, uint64_t{1} << 30, 1, false},
      {"read 1 GiB x 1", kRead, uint64_t{1} << 30, 1, false},
      {"write 4 KiB x 1", kWrite, 4096, 1, false},
      {"read 4 KiB x 1", kRead, 4096, 1, false},
      {"write 64 KiB x 1", kWrite, 65536, 1, false},
      {"write 512 B x 65536", kWrite, 512, 65536, false},
      {"write 32 KiB x 112000", kWrite, 32768, 112000, false},
      {"host to peer 32 KiB x 4096", kWrite, 32768, 4096, true},
      {"peer to host 32 KiB x 4096", kRead, 32768, 4096, true},
      {"host to peer 64 KiB x 4096", kWrite, 65536, 4096, true},
  };
  Rows rows{{"transfer", "GB/s", "spread", "bare GB/s", "cudaMemcpy GB/s", "of limit", "us", "bare us",
             "post us", "lists us", "transfer us", "pages"}};
  int wrong = 0;
  for (const Cell& cell : cells) {
    if (cell.page * cell.pages > options.span || (cell.host && options.on_stream)) continue;
    if (options.through_host && (cell.host || cell.pages > 16384)) continue;
    try {
      rows.push_back(run(cell, options, ends, wrong));
    } catch (const std::exception& error) {
      std::cout << cell.name << ": " << error.what() << std::endl;
      ++wrong;
    }
  }
  try {
    rows.push_back(run_both_ways(32768, 4096, options, ends));
  } catch (const std::exception& error) {
    std::cout << "both ways: " << error.what() << std::endl;
    ++wrong;
  }
  std::cout << render(rows) << std::endl;
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) try {
  bench::Options options;
  CLI::App app{"Transfers between GPUs against the plain kernel over the same list"};
  app.add_option("--plugin", options.plugin, "libtowline_cuda.so")->required();
  app.add_option("--span", options.span, "bytes of GPU memory that pages are drawn from");
  app.add_option("--host-span", options.host_span, "the same of pinned host memory");
  app.add_option("--rounds", options.rounds);
  app.add_option("--blocks", options.blocks, "thread blocks, of both");
  app.add_option("--read-blocks", options.read_blocks, "the same of reads");
  app.add_option("--host-blocks", options.host_blocks,
                 "thread blocks where one side is host memory, of both");
  app.add_flag("--on-stream", options.on_stream, "posts as work of a stream of the harness");
  app.add_flag("--pageable", options.pageable,
               "only host memory as malloc gives it, moved once and again, pinned and never pinned");
  app.add_option("--pin", options.pin, "the setting tuning.cuda.pin");
  app.add_flag("--ways", options.ways, "only plain kernels: pushed or pulled, by how many thread blocks");
  app.add_flag("--through-host", options.through_host,
               "as where the GPUs have no path: through host memory of both processes");
  app.add_flag("--all-to-all", options.all, "every GPU to every other at once, in one process");
  app.add_flag("--beside", options.beside,
               "only transfers beside a matrix product, each way of copying in turn");
  app.add_option("--cublas", options.besides.cublas, "libcublas.so, where the loader does not find it");
  app.add_option("--seconds", options.besides.seconds, "for which a row of --beside is measured");
  app.add_option("--product-size", options.besides.size, "of the product's square matrices");
  app.add_option("--way", options.besides.ways,
                 "instead of the ways of --beside: name|settings|SMs of the product (120, 8r: but 8, 120a: "
                 "asked of cuBLAS)|bytes per second (beside.h)");
  app.add_option("--case", options.besides.cases, "of --beside: numbers of the transfers to measure");
  app.add_flag("--routes", options.besides.routes, "shows the route of each row of --beside");
  app.add_flag("--together", options.together,
               "only two communicators, and pages from each GPU to the next, alone and at once");
  app.add_flag("--collectives", options.collective,
               "only collectives of ranks with a GPU each, in turns with NCCL in CUDA graphs");
  app.add_flag("--norm", options.norm,
               "only all_reduce fused with a residual addition and RMSNorm, in turns with all_reduce alone");
  app.add_flag(
      "--shared", options.shared,
      "only all_reduces of ranks that share the first GPU, in turns with a plain kernel, in CUDA graphs");
  app.add_option("--collectives-plugin", options.collectives.plugin,
                 "libtowline_collectives_gpu.so, where it is not beside the library");
  app.add_option("--nccl", options.collectives.nccl, "libnccl.so.2, where the loader does not find it");
  app.add_option("--ranks", options.collectives.ranks,
                 "of --collectives, --norm and --shared: how many, once or more; without it 2, 4 and 8, as "
                 "far as there are GPUs");
  app.add_option("--operation", options.collectives.operations,
                 "of --collectives: all_reduce, all_gather, reduce_scatter, all_to_all; without it all");
  app.add_option("--least", options.collectives.least, "bytes of the smallest operation of --collectives");
  app.add_option("--most", options.collectives.most, "bytes of the largest");
  app.add_option("--settings", options.collectives.ways,
                 "of --collectives and --shared: one more contender, name|settings of [tuning.collectives], "
                 "';' between");
  app.add_flag("--target", options.target, "the owner of the far memory (started by the program itself)");
  CLI11_PARSE(app, argc, argv);
  if (bench::gpu::count() == 0) {
    std::cerr << "there is no GPU here\n";
    return 77;
  }
  if (options.ways) {
    if (bench::gpu::count() > 1) bench::gpu::measure_ways(options.rounds);
    return 0;
  }
  if (options.beside) {
    options.besides.plugin = options.plugin;
    return bench::gpu::measure_beside(options.besides);
  }
  if (options.together)
    return bench::gpu::measure_together({.plugin = options.plugin,
                                         .collectives_plugin = options.collectives.plugin,
                                         .rounds = options.rounds})
               ? 0
               : 1;
  if (options.collective) {
    options.collectives.rounds = options.rounds;
    return bench::gpu::measure_collectives(options.collectives) ? 0 : 1;
  }
  if (options.norm)
    return bench::gpu::measure_norms({.plugin = options.collectives.plugin,
                                      .ranks = options.collectives.ranks,
                                      .rounds = options.rounds})
               ? 0
               : 1;
  if (options.shared)
    return bench::gpu::measure_shared({.plugin = options.collectives.plugin,
                                       .ranks = options.collectives.ranks,
                                       .ways = options.collectives.ways,
                                       .rounds = options.rounds})
               ? 0
               : 1;
  if (options.all) {
    const bool right = bench::gpu::run_all_to_all({.plugin = options.plugin,
                                                   .blocks = options.blocks,
                                                   .rounds = options.rounds,
                                                   .page = 32768,
                                                   .pages = 4096});
    return right ? 0 : 1;
  }
  if (options.target) return bench::serve(options);
  return options.pageable ? bench::measure_pageable("/proc/self/exe", options)
                          : bench::measure("/proc/self/exe", options);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
