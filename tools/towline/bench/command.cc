#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "bench/bench.h"
#include "bench/fabric.h"
#include "buffer.h"
#include "failure.h"
#include "units.h"

namespace tool::bench {
namespace {

struct Texts {
  std::string sizes = "4KiB,64KiB,1MiB,64MiB";
  std::string span = "256MiB";
  std::string seconds = "500ms";
  std::string collective;
  std::vector<std::string> rails;
};

// Fills in the options that rows of files share with rows between processes.
void complete_storage(BenchOptions& options) {
  StorageOptions& storage = options.storage;
  const InitiatorOptions& each = options.common;
  storage.span_bytes = each.span_bytes;
  storage.iterations = each.iterations;
  storage.seconds = each.seconds;
  storage.warmup = each.warmup;
  storage.check = each.check;
  storage.sequential = each.sequential;
  storage.spin = each.spin;
}

// Files instead of peers.
void add_storage_options(CLI::App& command, BenchOptions& options) {
  auto* folder =
      command
          .add_option("--storage", options.storage.places,
                      "Measure files made in this folder (also gds:/folder, hf3fs:/folder, "
                      "nixl:/folder, nixl:PLUGIN:/folder), or objects below s3://bucket/prefix, az:// "
                      "or gs://, not peers; several of them in one table")
          ->delimiter(',')
          ->type_name("PLACE,..");
  for (const char* other : {"--pattern", "--initiators", "--targets", "--memory", "--target-memory",
                            "--backend", "--workers", "--faults", "--listen", "--connect"})
    folder->excludes(command.get_option(other));
  command.add_flag("--direct", options.storage.direct, "Past the page cache")->needs(folder);
  command.add_option("--sync", options.storage.sync, "What a write waits for: none, data or full (fsync)")
      ->capture_default_str()
      ->needs(folder);
  command.add_option("--engine", options.storage.engine, "auto, uring, aio, threads or pread")
      ->capture_default_str()
      ->needs(folder);
  command.add_option("--files", options.storage.files, "Files of each thread")
      ->capture_default_str()
      ->needs(folder);
  command.add_option("--depths", options.depths, "Requests of each thread in flight at once")
      ->delimiter(',')
      ->type_name("N,..")
      ->capture_default_str()
      ->needs(folder);
}

// Ranks of a communicator instead of pairs.
void add_collective_options(CLI::App& command, BenchOptions& options, std::string& operations) {
  auto* collective =
      command
          .add_option("--collective", operations,
                      "Measure collective operations, each result checked against float64: all, "
                      "or all_reduce, barrier ..")
          ->type_name("OP,..");
  for (const char* other : {"--pattern", "--initiators", "--targets", "--from", "--batches", "--threads",
                            "--workers", "--target-memory", "--backend", "--span", "--sequential", "--warmup",
                            "--spin", "--faults", "--listen", "--connect", "--storage"})
    collective->excludes(command.get_option(other));
  command.add_option("--ranks", options.collective.ranks, "Processes, several numbers one after the other")
      ->delimiter(',')
      ->type_name("N,..")
      ->capture_default_str()
      ->needs(collective);
  command.add_flag("--tcp", options.collective.tcp, "As if each rank were on a host of its own")
      ->needs(collective);
  command
      .add_option(
          "--peers", options.collective.peers,
          "Peers to measure beside Towline, if installed: gloo (of torch), mpi (Open MPI), or nccl with "
          "--memory vram; none")
      ->delimiter(',')
      ->type_name("NAME,..")
      ->check(CLI::IsMember({"gloo", "mpi", "nccl", "none"}))
      ->capture_default_str()
      ->needs(collective);
  command
      .add_option(
          "--nccl-from", options.collective.nccl_from,
          "With --memory vram: the operations that Towline gives to NCCL, and from which size on, as in "
          "tuning.collectives.nccl_from; the table says who did each")
      ->type_name("OP=SIZE,..")
      ->needs(collective);
  command.add_option("--python", options.collective.python, "A Python that has torch, for gloo")
      ->type_name("PROGRAM")
      ->capture_default_str()
      ->needs(collective);
}

// A product on the GPU of each initiator.
void add_beside_options(CLI::App& command, BenchOptions& options) {
  BesideOptions& given = options.common.beside;
  auto* beside =
      command
          .add_option(
              "--beside", given.what,
              "Measure each row alone, then beside a matrix product (bf16, cuBLAS) on the initiator's "
              "GPU, and say what the product loses: gemm")
          ->check(CLI::IsMember({"gemm"}));
  for (const char* other : {"--storage", "--collective"}) beside->excludes(command.get_option(other));
  auto* sms = command
                  .add_option("--beside-sms", given.sms,
                              "The product runs in a green context of so many multiprocessors and leaves the "
                              "rest to copies (tuning.cuda.application_sms); by default it uses all")
                  ->type_name("N")
                  ->needs(beside);
  command
      .add_option(
          "--beside-asked", given.asked,
          "cuBLAS is asked to keep the product to so many multiprocessors; copies fit into the rest with "
          "as many blocks (tuning.cuda.blocks)")
      ->type_name("N")
      ->needs(beside)
      ->excludes(sms);
  command.add_option("--beside-size", given.size, "Of its square matrices")
      ->check(CLI::Range(64, 65536))
      ->capture_default_str()
      ->needs(beside);
  command.add_option("--cublas", given.cublas, "cuBLAS, if it is not found by itself")
      ->type_name("FILE")
      ->needs(beside);
}

// Engines of the fabric instead of agents.
void add_fabric_options(CLI::App& command, std::vector<std::string>& rails) {
  auto* fabric =
      command
          .add_option("--fabric", rails,
                      "Measure the TransferEngine over these rails: auto (every RDMA port), verbs:mlx5_0, "
                      "'ofi:tcp;ofi_rxm' ..")
          ->delimiter(',')
          ->type_name("RAIL,..");
  for (const char* other : {"--pattern", "--initiators", "--targets", "--threads", "--workers", "--backend",
                            "--sequential", "--spin", "--faults", "--storage", "--collective"})
    fabric->excludes(command.get_option(other));
}

void run_fabric(const BenchOptions& options, const std::vector<std::string>& rails,
                const CommonOptions& common) {
  FabricBenchOptions fabric;
  fabric.rails = rails;
  fabric.listen = options.listen;
  if (options.connect.size() > 1) throw Failure{"--fabric measures one pair: give --connect once"};
  if (!options.connect.empty()) fabric.connect = options.connect.front();
  fabric.span_bytes = options.common.span_bytes;
  fabric.iterations = options.common.iterations;
  fabric.seconds = options.common.seconds;
  fabric.warmup = options.common.warmup;
  fabric.check = options.common.check;
  fabric.memory = options.common.memory_kind;
  fabric.target_memory =
      options.common.target_memory_kind.empty() ? fabric.memory : options.common.target_memory_kind;
  for (const std::string& kind : {fabric.memory, fabric.target_memory}) (void)parse_buffer_kind(kind);
  fabric.rows = fabric_rows(options.from, options.sizes, options.batches, fabric.span_bytes);
  run_fabric_bench(fabric, common);
}

// Sets the numbers of processes that the user left to the pattern.
void complete(BenchOptions& options, bool initiators_given, bool targets_given) {
  const Pattern pattern = parse_pattern(options.common.pattern);
  if (!options.connect.empty()) {
    options.targets = static_cast<uint32_t>(options.connect.size());
    targets_given = true;
  }
  const bool several_initiators = pattern == Pattern::kManyToOne;
  const bool several_targets = pattern == Pattern::kOneToMany || pattern == Pattern::kTensorParallel;
  if (!initiators_given) {
    options.common.initiators = several_initiators ? 2 : pattern == Pattern::kPairwise ? options.targets : 1;
  }
  if (!targets_given) {
    options.targets = several_targets ? 2 : pattern == Pattern::kPairwise ? options.common.initiators : 1;
  }
}

}  // namespace

void add_bench_command(CLI::App& app, CommonOptions& common) {
  auto* command = app.add_subcommand("bench", "Measure transfers between pairs of processes");
  auto options = std::make_shared<BenchOptions>();
  auto texts = std::make_shared<Texts>();
  InitiatorOptions& each = options->common;

  command->add_option("--pattern", each.pattern, "pairwise, manytoone, onetomany or tp")
      ->capture_default_str();
  auto* initiators = command->add_option("--initiators", each.initiators,
                                         "Processes that post; by default as many as the pattern needs");
  auto* targets = command->add_option("--targets", options->targets,
                                      "Passive processes; by default as many as the pattern needs");
  command
      ->add_option(
          "--from", options->from,
          "The side that bytes come from: initiator (which pushes them), target (it pulls them) or both in "
          "turn; with --storage: memory, storage, both or mixed")
      ->type_name("SIDE")
      ->capture_default_str();
  command->add_option("--sizes", texts->sizes, "Block sizes")->type_name("SIZE,..")->capture_default_str();
  command
      ->add_option("--batches", options->batches,
                   "Blocks of a request: one for each size, or one for all; by default 64 MiB worth")
      ->delimiter(',')
      ->type_name("N,..")
      ->check(refuse_unless_whole);
  command->add_option("--threads", options->threads, "Threads that post, each its own requests")
      ->delimiter(',')
      ->type_name("N,..")
      ->capture_default_str();
  command
      ->add_option("--workers", options->common.workers,
                   "Threads of each agent that make progress; by default as many as post")
      ->check(CLI::Range(1, 8))
      ->type_name("N");
  command
      ->add_option(
          "--memory", each.memory_kind,
          "shared (peers map it), private (as malloc gives it), or vram: initiators take GPUs from the first "
          "on, targets from the last back")
      ->capture_default_str();
  command
      ->add_option("--target-memory", each.target_memory_kind,
                   "The same of the targets, if it is another kind")
      ->type_name("KIND");
  auto* backend =
      command->add_option("--backend", each.backend, "Force one backend; by default the router chooses")
          ->type_name("NAME");
  command
      ->add_option(
          "--source", options->source,
          "How tcpx receives payload: devmem, mapped, copy, emulated; by default the best that can be had")
      ->type_name("NAME")
      ->needs(backend);
  command->add_option("--span", texts->span, "Blocks of a thread lie at random over so much memory")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_flag("--sequential", each.sequential, "Blocks in order instead");
  command
      ->add_option("--iterations", each.iterations,
                   "Requests of each thread; by default as many as fit in --time")
      ->type_name("N")
      ->check(refuse_unless_whole);
  command->add_option("--time", texts->seconds, "How long to measure each row")
      ->type_name("DURATION")
      ->capture_default_str();
  command->add_option("--warmup", each.warmup, "Requests before measuring")
      ->type_name("N")
      ->check(refuse_unless_whole)
      ->capture_default_str();
  command->add_flag("--spin", each.spin, "Poll for the end instead of waiting");
  command->add_flag("!--no-check", each.check, "Leave out the check of every byte");
  command
      ->add_option("--faults", options->faults,
                   "Faults to inject into the transports, in the form of TOWLINE_FAULTS")
      ->type_name("SPEC");
  command
      ->add_option("--listen", options->listen,
                   "Run only targets, for initiators elsewhere; further targets use the next ports")
      ->type_name("HOST:PORT");
  command->add_option("--connect", options->connect, "Targets that run elsewhere")
      ->delimiter(',')
      ->type_name("HOST:PORT,..");
  add_storage_options(*command, *options);
  add_collective_options(*command, *options, texts->collective);
  add_fabric_options(*command, texts->rails);
  add_beside_options(*command, *options);
  command->add_flag("--json", common.json, "Print the results as JSON");
  command->footer(
      "Examples:\n"
      "  towline bench                                        two processes, both directions, 4 KiB to 64 "
      "MiB\n"
      "  towline bench --sizes 64KiB --memory private         memory that peers cannot map\n"
      "  towline bench --pattern tp --targets 4             each block shared out over four ranks\n"
      "  towline bench --backend tcp --threads 1,2,4\n"
      "  towline bench --backend tcp --workers 4          large requests over four sockets\n"
      "  towline bench --backend tcpx --source mapped --sizes 1MiB\n"
      "  towline bench --listen '*:7800'                      on one host ...\n"
      "  towline bench --connect 10.0.0.7:7800                ... and on the other\n"
      "  towline bench --storage /data --direct --depths 1,8  files of a folder, past the page cache\n"
      "  towline bench --storage . --from mixed --sync data --files 4\n"
      "  towline bench --storage /data,nixl:POSIX:/data,s3://bucket/bench\n"
      "  towline bench --memory vram --target-memory shared --from initiator --beside gemm\n"
      "  towline bench --collective all --ranks 2,4,8 --sizes 4,4KiB,1MiB,256MiB\n"
      "  towline bench --collective all_reduce --peers gloo --python venv/bin/python\n"
      "  towline bench --collective all_reduce --memory vram --ranks 2 --sizes 4KiB,1MiB\n"
      "  towline bench --fabric auto --sizes 4KiB,64KiB       engines without agents, over every RDMA port\n"
      "  towline bench --fabric auto --memory vram            the same between GPUs\n"
      "p50, p99 and max are of a request; 'a block' is the median request over its blocks; cpu/GB and target "
      "are\n"
      "processor time of the two sides for 10^9 bytes. Of collective operations times are the slowest "
      "rank's; bus "
      "GB/s\n"
      "counts what a rank has to send at least.");

  command->callback([options, texts, initiators, targets, &common] {
    options->sizes = parse_sizes(texts->sizes);
    options->common.span_bytes = parse_size(texts->span);
    options->common.seconds = std::chrono::duration<double>(parse_duration(texts->seconds)).count();
    if (!texts->collective.empty()) {
      CollectiveOptions& collective = options->collective;
      collective.operations = parse_collectives(texts->collective);
      collective.sizes = options->sizes;
      collective.iterations = options->common.iterations;
      collective.seconds = options->common.seconds;
      collective.check = options->common.check;
      choose_memory(collective, options->common.memory_kind);
      std::erase(collective.peers, "none");
      run_collective_bench(collective, common);
      return;
    }
    if (!texts->rails.empty()) return run_fabric(*options, texts->rails, common);
    complete_storage(*options);
    (void)parse_buffer_kind(options->common.memory_kind);
    if (!options->common.target_memory_kind.empty())
      (void)parse_buffer_kind(options->common.target_memory_kind);
    if (!options->common.beside.what.empty() && options->common.memory_kind != "vram")
      throw Failure{"--beside runs on the GPU of an initiator: --memory vram is needed"};
    complete(*options, initiators->count() > 0, targets->count() > 0);
    run_bench(*options, common);
  });
}

}  // namespace tool::bench
